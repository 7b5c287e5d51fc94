//! The `foresee` command.
fn main() {}
