//! Keeps the library in memory after `dlclose`, which `nvml-wrapper` does at shutdown: the thread
//! that serves the control socket runs its code.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
