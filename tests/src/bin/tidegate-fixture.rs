//! `tidegate-fixture RELEASE`: writes what a release leaves behind, once, when it is released.

use clap::Parser;

/// Writes the store and messages of this version to tests/data/RELEASE.
#[derive(Debug, Parser)]
struct Args {
    /// Such as 0.1.
    release: String,
}

fn main() -> anyhow::Result<()> {
    cluster_tests::fixture::write(&Args::parse().release)
}
