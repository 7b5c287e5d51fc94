//! What lists of transforms a pipeline takes, and what it says of others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use foresee_image::{
    Dtype, Layout, Pipeline, PipelineError, RandomResizedCrop, Resize, Size, Transform,
};

const CROP: Transform = Transform::CenterCrop(Size::square(224));
const SHORTER: Transform = Transform::Resize(Resize::ShorterEdge {
    edge: 256,
    longer_max: None,
});
const NORMALIZE: Transform = Transform::Normalize {
    mean: [0.5; 3],
    std: [0.5; 3],
};

fn error(transforms: &[Transform], dtype: Dtype) -> PipelineError {
    Pipeline::new(transforms, dtype, Layout::Chw)
        .err()
        .expect("an error")
}

fn message(transform: Transform) -> String {
    error(&[transform, CROP], Dtype::Float32).to_string()
}

#[test]
fn the_output_is_that_of_the_last_transform_of_the_size() {
    let pipeline = Pipeline::new(&[SHORTER, CROP, NORMALIZE], Dtype::Float16, Layout::Hwc).unwrap();
    let output = pipeline.output();
    assert_eq!((output.size, output.channels), (Size::square(224), 3));
    assert_eq!(output.bytes, 224 * 224 * 3 * 2);
}

#[test]
fn a_shorter_edge_of_a_fixed_size_is_a_fixed_size() {
    let exact = Transform::Resize(Resize::Exact(Size::new(100, 200)));
    let shorter = Transform::Resize(Resize::ShorterEdge {
        edge: 50,
        longer_max: None,
    });
    let pipeline = Pipeline::new(&[exact, shorter], Dtype::Uint8, Layout::Chw).unwrap();
    assert_eq!(pipeline.output().size, Size::new(50, 100));
}

#[test]
fn a_size_that_depends_on_the_image_is_refused_with_the_remedy() {
    assert_eq!(error(&[SHORTER], Dtype::Uint8), PipelineError::OpenSize);
    assert_eq!(error(&[], Dtype::Uint8), PipelineError::OpenSize);
    assert!(
        PipelineError::OpenSize
            .to_string()
            .contains("end with CenterCrop")
    );
}

#[test]
fn only_flips_may_follow_normalize() {
    let flips = [
        CROP,
        NORMALIZE,
        Transform::RandomHorizontalFlip(0.5),
        Transform::RandomVerticalFlip(0.5),
    ];
    assert!(Pipeline::new(&flips, Dtype::Float32, Layout::Chw).is_ok());
    let found = error(&[NORMALIZE, CROP], Dtype::Float32).to_string();
    assert_eq!(
        found,
        "transform 1 (CenterCrop) comes after Normalize; only flips may"
    );
    let found = error(&[CROP, NORMALIZE, NORMALIZE], Dtype::Float32).to_string();
    assert_eq!(
        found,
        "transform 2 (Normalize) comes after Normalize; only flips may"
    );
}

#[test]
fn bytes_cannot_be_normalized() {
    assert_eq!(
        error(&[CROP, NORMALIZE], Dtype::Uint8),
        PipelineError::IntegerNormalize
    );
}

#[test]
fn parameters_out_of_range_are_named() {
    let crop = RandomResizedCrop::new(Size::square(8));
    let wrong = [
        (
            Transform::CenterCrop(Size::new(0, 8)),
            "transform 0 (CenterCrop): size 0 x 8 is not in 1 to 65535",
        ),
        (
            Transform::RandomResizedCrop(RandomResizedCrop {
                scale: (0.5, 0.1),
                ..crop
            }),
            "transform 0 (RandomResizedCrop): scale (0.5, 0.1) is not 0 < least <= greatest",
        ),
        (
            Transform::RandomResizedCrop(RandomResizedCrop {
                ratio: (0.0, 1.0),
                ..crop
            }),
            "transform 0 (RandomResizedCrop): ratio (0, 1) is not 0 < least <= greatest",
        ),
        (
            Transform::RandomHorizontalFlip(f64::NAN),
            "transform 0 (RandomHorizontalFlip): probability NaN is not in 0 to 1",
        ),
        (
            Transform::Resize(Resize::ShorterEdge {
                edge: 256,
                longer_max: Some(256),
            }),
            "transform 0 (Resize): max_size 256 is not above size 256",
        ),
        (
            Transform::Normalize {
                mean: [0.0; 3],
                std: [1.0, 0.0, 1.0],
            },
            "transform 0 (Normalize): std [1.0, 0.0, 1.0] has a zero or is not finite",
        ),
    ];
    for (transform, expected) in wrong {
        assert_eq!(message(transform), expected);
    }
}
