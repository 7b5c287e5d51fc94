//! Frames that are well formed, damaged or made up, in pieces of any length.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| foresee_runtime::transport::tcp::trial::frames(data));
