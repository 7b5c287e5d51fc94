//! Handshakes that are damaged, cut short or made up, at either end.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| foresee_runtime::transport::tcp::trial::handshake(data));
