//! Against PIL and torchvision: the files in `data` and what these made of them (`data/make_fixtures.py`).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use foresee_image::{
    Drawn, Dtype, Key, Layout, Pipeline, RandomResizedCrop, Rect, Resize, Scratch, Size, Transform,
    decode, probe,
};
use serde_json::Value;

/// What the project allows, and what rounding between PIL's two passes costs at most.
const MEAN_MAX: f64 = 2.0;
const STEP_MAX: u8 = 1;

const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];

struct Case {
    file: PathBuf,
    transforms: Vec<Transform>,
    key: Key,
    drawn: Vec<Drawn>,
    result: PathBuf,
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// Size and pixels of a PNG that PIL wrote, read without this crate.
fn read_png(path: &Path) -> (Size, Vec<u8>) {
    let file = std::io::BufReader::new(fs::File::open(path).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!(info.color_type, png::ColorType::Rgb, "{}", path.display());
    (Size::new(info.height, info.width), pixels)
}

fn images(extension: &str) -> Vec<PathBuf> {
    let is_image = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with(extension) && name.ends_with(extension) && !name.ends_with(".rgb.png")
    };
    let mut paths: Vec<PathBuf> = fs::read_dir(data(""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(is_image)
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "fixtures of {extension}");
    paths
}

fn assert_decodes_as_pil(extension: &str, step_max: u8) {
    let mut scratch = Scratch::default();
    for path in images(extension) {
        let (size, expected) = read_png(&path.with_extension("rgb.png"));
        let mut decoded = Vec::new();
        let found = decode(&fs::read(&path).unwrap(), &mut scratch, &mut decoded).unwrap();
        assert_eq!(found, size, "{}", path.display());
        let steps = decoded
            .iter()
            .zip(&expected)
            .map(|(a, b)| a.abs_diff(*b))
            .max();
        assert!(
            steps <= Some(step_max),
            "{}: off by {steps:?}",
            path.display()
        );
    }
}

#[test]
fn every_kind_of_jpeg_is_decoded_as_by_pil() {
    assert_decodes_as_pil("jpg", 0);
}

#[test]
fn every_kind_of_png_is_decoded_as_by_pil() {
    assert_decodes_as_pil("png", 0);
}

#[test]
fn every_kind_of_webp_is_decoded_as_by_pil() {
    assert_decodes_as_pil("webp", 0);
}

#[test]
fn every_kind_of_gif_is_decoded_as_by_pil() {
    assert_decodes_as_pil("gif", 0);
}

#[test]
fn every_kind_of_bmp_is_decoded_as_by_pil() {
    assert_decodes_as_pil("bmp", 0);
}

#[test]
fn every_kind_of_ppm_and_pgm_is_decoded_as_by_pil() {
    assert_decodes_as_pil("pnm", 0);
}

#[test]
fn every_kind_of_tiff_is_decoded_as_by_pil() {
    assert_decodes_as_pil("tif", 0);
}

#[test]
fn probing_tells_the_size_of_every_image() {
    let mut scratch = Scratch::default();
    for path in ["jpg", "png", "webp", "gif", "bmp", "pnm", "tif"]
        .iter()
        .flat_map(|extension| images(extension))
    {
        let (size, _) = read_png(&path.with_extension("rgb.png"));
        assert_eq!(
            probe(&fs::read(&path).unwrap(), &mut scratch),
            Ok(size),
            "{}",
            path.display()
        );
    }
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

fn size(value: &Value) -> Size {
    Size::new(number(&value[0]), number(&value[1]))
}

fn pair(value: &Value) -> (f64, f64) {
    (value[0].as_f64().unwrap(), value[1].as_f64().unwrap())
}

fn transform(words: &Value) -> Transform {
    match words[0].as_str().unwrap() {
        "random_resized_crop" => Transform::RandomResizedCrop(RandomResizedCrop {
            size: size(&words[1]),
            scale: pair(&words[2]),
            ratio: pair(&words[3]),
        }),
        "resize" if words[1].as_array().unwrap().len() == 2 => {
            Transform::Resize(Resize::Exact(size(&words[1])))
        }
        "resize" => Transform::Resize(Resize::ShorterEdge {
            edge: number(&words[1][0]),
            longer_max: words[2]
                .as_u64()
                .map(|longest| u32::try_from(longest).unwrap()),
        }),
        "center_crop" => Transform::CenterCrop(size(&words[1])),
        "horizontal_flip" => Transform::RandomHorizontalFlip(words[1].as_f64().unwrap()),
        "vertical_flip" => Transform::RandomVerticalFlip(words[1].as_f64().unwrap()),
        name => panic!("no such transform: {name}"),
    }
}

fn drawn(value: &Value) -> Drawn {
    match value {
        Value::Bool(flip) => Drawn::Flip(*flip),
        Value::Array(crop) => {
            let size = Size::new(number(&crop[2]), number(&crop[3]));
            Drawn::Crop(Rect {
                y: number(&crop[0]),
                x: number(&crop[1]),
                size,
            })
        }
        _ => Drawn::Nothing,
    }
}

fn cases() -> Vec<Case> {
    let cases: Value = serde_json::from_slice(&fs::read(data("cases.json")).unwrap()).unwrap();
    let list = |value: &Value| value.as_array().unwrap().clone();
    let case = |case: &Value| Case {
        file: data(case["file"].as_str().unwrap()),
        transforms: list(&case["transforms"]).iter().map(transform).collect(),
        key: Key {
            seed: case["key"][0].as_u64().unwrap(),
            epoch: case["key"][1].as_u64().unwrap(),
            sample: case["key"][2].as_u64().unwrap(),
        },
        drawn: list(&case["drawn"]).iter().map(drawn).collect(),
        result: data(case["result"].as_str().unwrap()),
    };
    list(&cases).iter().map(case).collect()
}

fn run(case: &Case, dtype: Dtype, layout: Layout, normalize: bool) -> Vec<u8> {
    let mut transforms = case.transforms.clone();
    if normalize {
        transforms.push(Transform::Normalize {
            mean: MEAN,
            std: STD,
        });
    }
    let pipeline = Pipeline::new(&transforms, dtype, layout).unwrap();
    let mut result = vec![0; pipeline.output().bytes];
    pipeline
        .run(
            &fs::read(&case.file).unwrap(),
            case.key,
            &mut Scratch::default(),
            &mut result,
        )
        .unwrap();
    result
}

#[test]
fn what_is_drawn_is_what_torchvision_would_draw_from_the_same_numbers() {
    for case in cases() {
        let pipeline = Pipeline::new(&case.transforms, Dtype::Uint8, Layout::Hwc).unwrap();
        let image = probe(&fs::read(&case.file).unwrap(), &mut Scratch::default()).unwrap();
        assert_eq!(
            pipeline.params(image, case.key),
            Ok(case.drawn),
            "{}",
            case.result.display()
        );
    }
}

#[test]
fn results_are_those_of_torchvision_but_for_rounding() {
    for case in cases() {
        let (_, expected) = read_png(&case.result);
        let result = run(&case, Dtype::Uint8, Layout::Hwc, false);
        assert_eq!(result.len(), expected.len(), "{}", case.result.display());
        let steps: Vec<u8> = result
            .iter()
            .zip(&expected)
            .map(|(a, b)| a.abs_diff(*b))
            .collect();
        let mean = steps.iter().map(|step| f64::from(*step)).sum::<f64>() / steps.len() as f64;
        let most = steps.iter().max().copied().unwrap();
        println!("{}: mean {mean:.3}, most {most}", case.result.display());
        assert!(
            mean <= MEAN_MAX,
            "{}: off by {mean} on average",
            case.result.display()
        );
        // A second resize sees the first one's rounding, too.
        assert!(
            most <= 2 * STEP_MAX,
            "{}: off by {most}",
            case.result.display()
        );
    }
}

#[test]
fn normalized_numbers_are_those_of_torchvision_to_the_bit() {
    let case = &cases()[0];
    let (size, pixels) = read_png(&case.result);
    let ours = run(case, Dtype::Uint8, Layout::Hwc, false);
    let planes = size.area() as usize;
    for (name, dtype) in [
        ("normalized.f32", Dtype::Float32),
        ("normalized.f16", Dtype::Float16),
    ] {
        let expected = fs::read(data(name)).unwrap();
        let result = run(case, dtype, Layout::Chw, true);
        let numbers = result
            .chunks_exact(dtype.bytes())
            .zip(expected.chunks_exact(dtype.bytes()));
        for (at, (number, expected)) in numbers.enumerate() {
            let value = at % planes * 3 + at / planes;
            // Where rounding made another pixel there is another number.
            if ours[value] == pixels[value] {
                assert_eq!(number, expected, "{name}: number {at}");
            }
        }
    }
}

#[test]
fn layouts_hold_the_same_numbers_in_another_order() {
    for case in &cases()[..4] {
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Uint8] {
            let normalize = dtype != Dtype::Uint8;
            let planes = run(case, dtype, Layout::Chw, normalize);
            let triples = run(case, dtype, Layout::Hwc, normalize);
            let pixels = triples.len() / dtype.bytes() / 3;
            let plane = |at: usize| {
                planes
                    .chunks_exact(dtype.bytes())
                    .nth(at % 3 * pixels + at / 3)
            };
            for (at, number) in triples.chunks_exact(dtype.bytes()).enumerate() {
                assert_eq!(Some(number), plane(at), "{dtype:?} number {at}");
            }
        }
    }
}

#[test]
fn without_normalize_floats_are_between_zero_and_one() {
    let case = &cases()[0];
    let bytes = run(case, Dtype::Uint8, Layout::Hwc, false);
    let floats = run(case, Dtype::Float32, Layout::Hwc, false);
    for (number, byte) in floats.chunks_exact(4).zip(bytes) {
        assert_eq!(number, (f32::from(byte) * (1.0 / 255.0)).to_ne_bytes());
    }
}
