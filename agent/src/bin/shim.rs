//! `tidegate-shim TASK_DIR`: supervises one task. Started by the starter, not by people.

use std::path::PathBuf;

use anyhow::bail;
use tidegate_agent::shim;
use tidegate_agent::task_dir::TaskDir;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(dir), None) = (arguments.next(), arguments.next()) else {
        bail!("usage: tidegate-shim TASK_DIR (the starter calls it)");
    };
    shim::run(&TaskDir::at(PathBuf::from(dir)))
}
