//! Tells the linker to keep the section in which pgrx stores the SQL of the functions.
//!
//! Nothing refers to that section, so a linker that collects garbage may drop it, and
//! `cargo pgrx install` would then find no functions. cargo-pgrx passes the same flag itself, but
//! to every crate of the build, which is why scripts/common.sh switches that off: cargo would
//! build all dependencies once for the tests and once more for the installation.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let family = std::env::var("CARGO_CFG_TARGET_FAMILY").unwrap_or_default();
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if family == "unix" && system != "macos" {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--no-gc-sections");
    }
}
