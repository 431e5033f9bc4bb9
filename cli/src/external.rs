//! Commands that are programs of their own beside this one, as git has them: `tidegate demo` runs
//! `tidegate-demo` with the arguments that follow.
//!
//! In a checkout the demo's programs may not be built yet: then cargo builds them first.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;

use crate::args::Cli;
use crate::connect::SOCKET_ENV;
use crate::exit::{Exit, Failure};
use crate::show::out::remark;
use tidegate_model::nearest;

/// Name and what it does.
const EXTERNAL: [(&str, &str); 3] = [
    ("demo", "Start a small cluster on this machine and show it at work"),
    ("replay", "Apply the records of a store again, one line each"),
    ("storm", "Measure what a flood of checkpoint writes does, under the gate and without"),
];

/// What the demo runs besides this program, which is built: it runs.
const DEMO_PACKAGES: [&str; 5] =
    ["tidegate-coordinator", "tidegate-agent", "trainer", "nvml-sim", "cluster-tests"];

/// Becomes the program of an external command.
///
/// # Errors
/// If there is no such command or program, or it cannot be built or run.
pub(crate) fn run(words: &[OsString], socket: Option<&Path>) -> Result<(), Failure> {
    let Some((name, args)) = words.split_first() else { return Err(unknown(OsStr::new(""))) };
    let Some((name, _)) = EXTERNAL.iter().find(|(known, _)| OsStr::new(known) == name) else {
        return Err(unknown(name));
    };
    let here = Here::find()?;
    let program = here.dir.join(format!("tidegate-{name}"));
    let checkout = here.checkout().filter(|_| *name == "demo");
    if let Some(checkout) = checkout {
        build_demo(&checkout, here.is_release(), &program)?;
    }
    if !program.exists() {
        let (dir, file) = (here.dir.display(), format!("tidegate-{name}"));
        let message = format!("{file} is not installed: it belongs beside tidegate, in {dir}");
        return Err(Failure::new(Exit::Failed, message));
    }
    let mut command = Command::new(&program);
    command.args(args);
    if let Some(socket) = socket {
        command.env(SOCKET_ENV, socket);
    }
    let error = command.exec();
    Err(Failure::new(Exit::Failed, format!("{} cannot be run: {error}", program.display())))
}

/// The commands, for `--help`.
pub(crate) fn help() -> String {
    let lines = EXTERNAL.map(|(name, about)| format!("  {name:<11}  {about}"));
    format!("Programs beside this one:\n{}", lines.join("\n"))
}

/// The whole command line with its external commands, for completion scripts.
pub(crate) fn with_external(command: clap::Command) -> clap::Command {
    EXTERNAL.iter().fold(command, |command, (name, about)| {
        command.subcommand(clap::Command::new(*name).about(*about))
    })
}

fn unknown(name: &OsStr) -> Failure {
    let command = with_external(Cli::command());
    let names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
    let given = name.to_string_lossy();
    let meant = nearest(&given, &names).map(|near| format!(" (did you mean {near:?}?)"));
    let meant = meant.unwrap_or_default();
    Failure::refused(format!("no command is named {given:?}{meant}; `tidegate --help` lists them"))
}

/// Where this program lies and how it was started.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Here {
    dir: PathBuf,
    /// The package that `cargo run` runs, if it does.
    manifest_dir: Option<PathBuf>,
}

impl Here {
    fn find() -> Result<Self, Failure> {
        let told = |error| Failure::new(Exit::Failed, format!("where am I? {error}"));
        let exe = env::current_exe().map_err(told)?;
        let dir = exe.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        let by_cargo = env::var_os("CARGO").and_then(|_| env::var_os("CARGO_MANIFEST_DIR"));
        Ok(Self { dir, manifest_dir: by_cargo.map(PathBuf::from) })
    }

    /// The workspace that this program was built in, if it lies where cargo put it.
    fn checkout(&self) -> Option<PathBuf> {
        let ours = |dir: &&Path| dir.join("Cargo.toml").is_file() && is_cli(&dir.join("cli"));
        if let Some(root) = self.manifest_dir.as_deref().filter(|dir| is_cli(dir)) {
            return root.parent().filter(ours).map(Path::to_path_buf);
        }
        let target = self.dir.parent().filter(|dir| dir.join("CACHEDIR.TAG").is_file())?;
        target.ancestors().find(ours).map(Path::to_path_buf)
    }

    fn is_release(&self) -> bool {
        self.dir.file_name().is_some_and(|name| name == "release")
    }
}

/// Whether a folder holds the package of this program.
fn is_cli(dir: &Path) -> bool {
    let manifest = std::fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default();
    manifest.lines().any(|line| line.trim() == "name = \"tidegate\"")
}

/// Cargo is quick to see that nothing has changed, and an older demo would puzzle whoever
/// changes its code: so it is asked each time.
fn build_demo(checkout: &Path, is_release: bool, program: &Path) -> Result<(), Failure> {
    let profile = if is_release { "release" } else { "debug" };
    remark(&format!(
        "building {} ({profile}): the demo runs them, and a checkout may hold older ones",
        DEMO_PACKAGES.join(", ")
    ));
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&cargo);
    command.current_dir(checkout).args(build_args(is_release));
    let status = match command.status() {
        Ok(status) => status,
        Err(error) => {
            let told = format!("{} cannot be run: {error}", cargo.to_string_lossy());
            if !program.exists() {
                return Err(Failure::new(Exit::Failed, format!("{told}; it builds the demo")));
            }
            remark(&format!("{told}; the demo runs as it was built before"));
            return Ok(());
        }
    };
    if !status.success() {
        return Err(Failure::new(Exit::Failed, "the demo's programs could not be built"));
    }
    Ok(())
}

fn build_args(is_release: bool) -> Vec<&'static str> {
    let packages = DEMO_PACKAGES.iter().flat_map(|package| ["-p", package]);
    let profile = is_release.then_some("--release");
    std::iter::once("build").chain(profile).chain(packages).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn checkout_at(root: &Path) {
        fs::create_dir_all(root.join("cli")).unwrap();
        fs::create_dir_all(root.join("target/release")).unwrap();
        fs::write(root.join("Cargo.toml"), "[workspace]\n").unwrap();
        fs::write(root.join("cli/Cargo.toml"), "[package]\nname = \"tidegate\"\n").unwrap();
        fs::write(root.join("target/CACHEDIR.TAG"), "").unwrap();
    }

    #[test]
    fn a_program_in_a_target_folder_or_run_by_cargo_knows_its_checkout() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        checkout_at(root);
        let in_target = Here { dir: root.join("target/release"), manifest_dir: None };
        assert_eq!(in_target.checkout().as_deref(), Some(root));
        assert!(in_target.is_release());
        let elsewhere =
            |manifest_dir| Here { dir: PathBuf::from("/opt/built/debug"), manifest_dir };
        assert_eq!(elsewhere(Some(root.join("cli"))).checkout().as_deref(), Some(root));
        assert!(!elsewhere(None).is_release());
    }

    #[test]
    fn an_installed_program_has_no_checkout_even_if_cargo_runs_its_caller() {
        let dir = tempfile::tempdir().unwrap();
        checkout_at(dir.path());
        let installed = |manifest_dir| Here { dir: dir.path().join("bin"), manifest_dir };
        assert_eq!(installed(None).checkout(), None);
        assert_eq!(installed(Some(dir.path().to_path_buf())).checkout(), None);
    }

    #[test]
    fn the_demo_is_built_in_the_profile_of_this_program() {
        let text = build_args(true).join(" ");
        assert!(text.starts_with("build --release -p tidegate-coordinator -p "), "{text}");
        assert!(!build_args(false).contains(&"--release"));
    }

    #[test]
    fn an_unknown_command_is_refused_with_the_nearest_one() {
        let told = |name: &str| run(&[OsString::from(name)], None).unwrap_err();
        assert_eq!(told("jbos").exit(), Exit::Refused);
        assert_eq!(
            told("jbos").to_string(),
            "no command is named \"jbos\" (did you mean \"jobs\"?); `tidegate --help` lists them"
        );
    }
}
