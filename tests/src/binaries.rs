//! The binaries that are started: built once by the harness, or found beside the caller.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, bail, ensure};

/// Packages whose binaries a cluster needs.
const PACKAGES: [&str; 5] =
    ["tidegate", "tidegate-coordinator", "tidegate-agent", "trainer", "nvml-sim"];

/// The variable that names a directory with other binaries for the nodes: those of a release,
/// against this coordinator.
pub const NODE_BINARIES: &str = "TIDEGATE_TEST_NODE_BINARIES";

/// What a node runs. The starter looks for the shim beside itself.
const OF_A_NODE: [&str; 3] = ["tidegate-agent", "tidegate-starter", "tidegate-shim"];

/// Where the binaries are.
#[derive(Debug, Clone)]
pub struct Binaries {
    dir: PathBuf,
    /// Where those of the nodes are, if elsewhere.
    nodes: Option<PathBuf>,
}

impl Binaries {
    /// For a test run by cargo: builds them, once in this process, and says so.
    ///
    /// # Errors
    /// If cargo is not there or the build fails.
    pub fn built() -> anyhow::Result<Self> {
        static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
        match built {
            Ok(dir) => {
                let nodes = std::env::var_os(NODE_BINARIES).map(PathBuf::from);
                Ok(Self { dir: dir.clone(), nodes })
            }
            Err(why) => bail!("{why}"),
        }
    }

    /// For an installed program: those in its own directory.
    ///
    /// # Errors
    /// If one is missing.
    pub fn beside_me() -> anyhow::Result<Self> {
        let me = std::env::current_exe().context("where am I?")?;
        let dir = me.parent().context("a program lies in a directory")?.to_owned();
        let found = Self { dir, nodes: None };
        for name in [
            "tidegate-coordinator",
            "tidegate-agent",
            "tidegate-starter",
            "tidegate-shim",
            "trainer",
            "libnvml_sim.so",
        ] {
            ensure!(found.path(name).exists(), "{name} is not beside {}", me.display());
        }
        Ok(found)
    }

    /// The path of one binary.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        let nodes = self.nodes.as_ref().filter(|_| OF_A_NODE.contains(&name));
        nodes.unwrap_or(&self.dir).join(name)
    }

    /// All of this checkout, those of the nodes too.
    #[must_use]
    pub fn upgraded(&self) -> Self {
        Self { dir: self.dir.clone(), nodes: None }
    }

    /// The library with simulated GPUs.
    #[must_use]
    pub fn nvml_sim(&self) -> PathBuf {
        self.dir.join("libnvml_sim.so")
    }
}

fn build() -> anyhow::Result<PathBuf> {
    let me = std::env::current_exe().context("where am I?")?;
    let dir = profile_dir(&me).context("the harness runs from a cargo target directory")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What cargo tells a test of its package would be told to build scripts, and some run again for it.
    let of_package =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST");
    for (name, _) in std::env::vars().filter(|(name, _)| of_package(name)) {
        command.env_remove(name);
    }
    command.args(["build", "--quiet", "--locked", "--bins", "--lib"]);
    if dir.ends_with("release") {
        command.arg("--release");
    }
    for package in PACKAGES {
        command.args(["--package", package]);
    }
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    announce(&format!("building the binaries that the suites start: {}", PACKAGES.join(", ")));
    let status = command.status().context("cargo cannot be run")?;
    ensure!(status.success(), "the binaries cannot be built");
    Ok(dir)
}

/// `target/<profile>` of a test (`…/deps/x`) or a binary (`…/x`).
fn profile_dir(exe: &Path) -> Option<PathBuf> {
    let dir = exe.parent()?;
    let dir = if dir.ends_with("deps") { dir.parent()? } else { dir };
    Some(dir.to_owned())
}

#[allow(clippy::print_stderr, reason = "a person waits for the build")]
fn announce(what: &str) {
    eprintln!("{what}");
}
