//! Compiles the shim between libjpeg's C interface and `decode/jpeg.rs`, against the headers that `turbojpeg-sys` built.

fn main() {
    let include =
        std::env::var("DEP_TURBOJPEG_INCLUDE").expect("turbojpeg-sys tells where its headers are");
    println!("cargo:rerun-if-changed=native/jpeg_window.c");
    cc::Build::new()
        .file("native/jpeg_window.c")
        .includes(include.split(','))
        .opt_level(3)
        .compile("foresee_jpeg_window");
}
