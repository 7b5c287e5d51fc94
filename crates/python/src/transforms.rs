//! Transforms as `python/foresee/transforms.py` describes them, made a pipeline.

use foresee_image::{Dtype, Key, Layout, Pipeline, RandomResizedCrop, Resize, Size, Transform};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::convert::from_python;
use crate::errors::{Kind, error};

/// All that is done to an image.
#[derive(Deserialize)]
struct Described {
    steps: Vec<Step>,
    dtype: NumberType,
    layout: Dimensions,
}

/// One transform.
#[derive(Deserialize)]
#[serde(tag = "kind")]
enum Step {
    RandomResizedCrop {
        size: (u32, u32),
        scale: (f64, f64),
        ratio: (f64, f64),
    },
    Resize {
        size: (u32, u32),
    },
    ResizeShorter {
        edge: u32,
        longer_max: Option<u32>,
    },
    CenterCrop {
        size: (u32, u32),
    },
    RandomHorizontalFlip {
        p: f64,
    },
    RandomVerticalFlip {
        p: f64,
    },
    Normalize {
        mean: [f64; 3],
        std: [f64; 3],
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum NumberType {
    Float32,
    Float16,
    Uint8,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Dimensions {
    Chw,
    Hwc,
}

impl Step {
    fn transform(self) -> Transform {
        let size = |(height, width)| Size { height, width };
        match self {
            Self::RandomResizedCrop {
                size: to,
                scale,
                ratio,
            } => Transform::RandomResizedCrop(RandomResizedCrop {
                size: size(to),
                scale,
                ratio,
            }),
            Self::Resize { size: to } => Transform::Resize(Resize::Exact(size(to))),
            Self::ResizeShorter { edge, longer_max } => {
                Transform::Resize(Resize::ShorterEdge { edge, longer_max })
            }
            Self::CenterCrop { size: to } => Transform::CenterCrop(size(to)),
            Self::RandomHorizontalFlip { p } => Transform::RandomHorizontalFlip(p),
            Self::RandomVerticalFlip { p } => Transform::RandomVerticalFlip(p),
            Self::Normalize { mean, std } => {
                let single = |numbers: [f64; 3]| numbers.map(|number| number as f32);
                Transform::Normalize {
                    mean: single(mean),
                    std: single(std),
                }
            }
        }
    }
}

/// What the transforms do, ready to run.
pub(crate) fn pipeline(described: &Bound<'_, PyAny>) -> PyResult<Pipeline> {
    let py = described.py();
    let wrong = |said: String| error(py, Kind::Config, format!("transform: {said}"));
    let described: Described = serde_json::from_value(from_python(described, "transform", 0)?)
        .map_err(|cause| wrong(format!("{cause}; use what is in foresee.transforms")))?;
    let dtype = match described.dtype {
        NumberType::Float32 => Dtype::Float32,
        NumberType::Float16 => Dtype::Float16,
        NumberType::Uint8 => Dtype::Uint8,
    };
    let layout = match described.layout {
        Dimensions::Chw => Layout::Chw,
        Dimensions::Hwc => Layout::Hwc,
    };
    let transforms: Vec<Transform> = described.steps.into_iter().map(Step::transform).collect();
    Pipeline::new(&transforms, dtype, layout).map_err(|cause| wrong(cause.to_string()))
}

/// What a sample's random numbers follow from, as one number for a generator in Python.
#[pyfunction]
pub(crate) fn sample_seed(seed: u64, epoch: u32, sample: u32) -> u64 {
    Key {
        seed,
        epoch: epoch.into(),
        sample: sample.into(),
    }
    .seed_for_others()
}

/// Whether transforms go together: says what is wrong where they do not.
#[pyfunction]
pub(crate) fn check_transforms(described: &Bound<'_, PyAny>) -> PyResult<()> {
    pipeline(described).map(drop)
}
