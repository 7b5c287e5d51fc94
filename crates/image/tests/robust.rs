//! No bytes crash a pipeline, and none spoil it for the next image.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod mutation;

use std::sync::LazyLock;

use foresee_image::{
    Dtype, ImageError, Key, Layout, Pipeline, RandomResizedCrop, Scratch, Size, Transform, decode,
    probe,
};
use mutation::{Edit, fixtures, mutate};
use proptest::prelude::*;

static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(fixtures);
static PIPELINE: LazyLock<Pipeline> = LazyLock::new(|| {
    let crop = Transform::RandomResizedCrop(RandomResizedCrop::new(Size::square(32)));
    Pipeline::new(
        &[crop, Transform::RandomHorizontalFlip(0.5)],
        Dtype::Float32,
        Layout::Chw,
    )
    .unwrap()
});

/// How files of each format begin.
const STARTS: [&[u8]; 10] = [
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"RIFF\x40\0\0\0WEBP",
    b"GIF89a\x10\0\x10\0\x80",
    b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0",
    b"P2 ",
    b"P6 20 20 255 ",
    b"II\x2a\0\x08\0\0\0",
    b"MM\0\x2a\0\0\0\x08\0\x08",
    b"II\x2b\0\x08\0\0\0\x10\0\0\0\0\0\0\0",
];

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<usize>();
    let byte = prop_oneof![
        any::<u8>(),
        Just(0xff),
        Just(0),
        Just(0xd9),
        Just(0xda),
        Just(0xc4)
    ];
    prop_oneof![
        4 => (at, any::<u8>()).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        4 => (at, byte.clone()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        // Headers are small, but most of a decoder's decisions are made there.
        4 => (0..700_usize, byte).prop_map(|(at, byte)| Edit::Set(at, byte)),
        1 => at.prop_map(Edit::Truncate),
        1 => (at, any::<usize>()).prop_map(|(at, count)| Edit::Cut(at, count)),
        1 => (at, any::<usize>(), any::<usize>(), any::<usize>())
            .prop_map(|(at, which, from, count)| Edit::Splice(at, which, from, count)),
    ]
}

fn run(bytes: &[u8], scratch: &mut Scratch) -> Result<Vec<u8>, ImageError> {
    let mut result = vec![0; PIPELINE.output().bytes];
    PIPELINE.run(
        bytes,
        Key {
            seed: 1,
            epoch: 2,
            sample: 3,
        },
        scratch,
        &mut result,
    )?;
    Ok(result)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_damaged_file_gives_a_result_or_an_error_and_the_next_one_is_fine(
        file in 0..FILES.len(),
        edits in prop::collection::vec(edit(), 1..6),
        next in 0..FILES.len(),
    ) {
        let mut scratch = Scratch::default();
        let damaged = mutate(&FILES[file], &FILES, &edits);
        let _ = run(&damaged, &mut scratch);
        let _ = decode(&damaged, &mut scratch, &mut Vec::new());
        prop_assert_eq!(run(&FILES[next], &mut scratch), run(&FILES[next], &mut Scratch::default()));
    }

    #[test]
    fn random_bytes_behind_a_signature_give_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0..STARTS.len()) {
        let bytes = [STARTS[kind], &bytes].concat();
        prop_assert!(run(&bytes, &mut Scratch::default()).is_err());
    }
}

#[test]
fn what_is_no_image_is_named_by_its_first_bytes() {
    let remedy = "convert the file to PNG or take it out of the dataset";
    let formats = "none of JPEG, PNG, WebP, GIF, BMP, PPM, PGM and TIFF";
    let error = probe(b"P7\nWIDTH 3", &mut Scratch::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{formats}: it starts with [50, 37, 0a, 57, 49, 44, 54, 48]; {remedy}")
    );
    let error = probe(b"", &mut Scratch::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{formats}: it starts with []; {remedy}")
    );
}

/// A fixture with some bytes exchanged.
fn changed(name: &str, from: &[u8], to: &[u8]) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes
        .windows(from.len())
        .position(|part| part == from)
        .unwrap();
    bytes[at..at + from.len()].copy_from_slice(to);
    bytes
}

#[test]
fn a_variant_that_is_not_read_is_refused_in_one_line_with_the_remedy() {
    // A short as the value of a tag, in a file of little endian.
    let tag = |tag: u16, value: u16| {
        let words = [tag, 3, 1, 0, value, 0];
        words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let cases = [
        (
            changed("tif_tiled.tif", &tag(259, 1), &tag(259, 4)),
            "TIFF: fax compression",
        ),
        (
            changed("tif_tiled.tif", &tag(259, 1), &tag(259, 6)),
            "TIFF: JPEG compression of the old style",
        ),
        (
            changed("tif_tiled.tif", &tag(259, 1), &tag(259, 50000)),
            "TIFF: compression 50000",
        ),
        (
            changed("tif_tiled.tif", &tag(262, 2), &tag(262, 8)),
            "TIFF: photometric interpretation 8",
        ),
        (
            changed("tif_inverted.tif", &tag(258, 8), &tag(258, 12)),
            "TIFF: samples of 12 bits and format 1",
        ),
        (
            changed("bmp_bits32.bmp", b"\x28\0\0\0", b"\x29\0\0\0"),
            "BMP: a header of 41 bytes",
        ),
        (
            changed("bmp_bits32.bmp", b"\x20\0\0\0\0\0", b"\x20\0\x05\0\0\0"),
            "BMP: compression 5 with 32 bits a pixel",
        ),
    ];
    for (bytes, what) in cases {
        let error = run(&bytes, &mut Scratch::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{what} is not supported; convert the file to PNG")
        );
    }
}

#[test]
fn a_bomb_is_refused_before_it_is_decoded() {
    let mut bomb = FILES
        .iter()
        .find(|file| file.starts_with(b"\xff\xd8\xff"))
        .unwrap()
        .clone();
    let frame = bomb
        .windows(2)
        .position(|pair| pair == [0xff, 0xc0])
        .unwrap();
    bomb[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xdc, 0xff, 0xdc]);
    let error = run(&bomb, &mut Scratch::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "JPEG: 65500 x 65500 has more than 178956970 pixels, a decompression bomb for PIL too"
    );
}

#[test]
fn bombs_of_every_format_are_refused_before_they_are_decoded() {
    let bombs: [&[u8]; 4] = [
        b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\x01\0\x01\0\x80\0\0\0\0\0\0\x08\x01\0\0;",
        b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\xff\xff\0\0\xff\xff\0\0\x01\0\x18\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        b"P6 65535 65535 255 ",
        b"II\x2a\0\x08\0\0\0\x03\0\
          \0\x01\x03\0\x01\0\0\0\xff\xff\0\0\
          \x01\x01\x03\0\x01\0\0\0\xff\xff\0\0\
          \x11\x01\x04\0\x01\0\0\0\0\0\0\0",
    ];
    for bomb in bombs {
        let error = run(bomb, &mut Scratch::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("65535 x 65535 has more than 178956970 pixels"),
            "{error}"
        );
    }
}

#[test]
fn images_cut_short_are_errors() {
    for file in FILES
        .iter()
        .filter(|file| !file.starts_with(b"\xff\xd8\xff"))
    {
        // The first of two pages or frames may be whole in half of a file.
        let error = run(&file[..file.len() / 3], &mut Scratch::default());
        assert!(error.is_err(), "{:?}", &file[..20]);
    }
}

#[test]
fn a_png_cut_inside_its_end_chunk_is_fine_as_for_pil() {
    let file = FILES
        .iter()
        .find(|file| file.starts_with(b"\x89PNG"))
        .unwrap();
    let whole = run(file, &mut Scratch::default());
    for cut in [1, 4] {
        assert!(
            run(&file[..file.len() - cut], &mut Scratch::default()) == whole,
            "{cut} bytes fewer"
        );
    }
}

#[test]
fn a_result_depends_neither_on_threads_nor_on_what_came_before() {
    let results = |order: Vec<usize>| {
        let mut scratch = Scratch::default();
        let mut results: Vec<_> = order
            .iter()
            .map(|file| (*file, run(&FILES[*file], &mut scratch)))
            .collect();
        results.sort_by_key(|(file, _)| *file);
        results
    };
    let forwards = results((0..FILES.len()).collect());
    let backwards = std::thread::spawn(move || results((0..FILES.len()).rev().collect()))
        .join()
        .unwrap();
    assert!(forwards == backwards);
    assert!(forwards.iter().all(|(_, result)| result.is_ok()));
}
