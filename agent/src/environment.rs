//! The variables a task is started with. Pure.
//!
//! The submitter's environment is not copied: what a job needs, its job file says. Later entries
//! win: the base, torchrun's defaults, the job's own variables, Tidegate's.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_model::{GpuUuid, TaskId, TaskLayout};
use tidegate_proto::link::Launch;

/// What a login without a shell profile has.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Where a task finds what is its own on the node.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// Appears when the job is asked to save.
    pub preempt_file: &'a Path,
    /// Where a job may talk to its shim; none if it cannot be served.
    pub socket: Option<&'a Path>,
    /// Home directory of the task's user.
    pub home: &'a str,
    /// Name of the task's user.
    pub user: &'a str,
}

/// The whole environment of one task.
#[must_use]
pub fn environment(task: TaskId, launch: &Launch, places: Places<'_>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut set = |name: &str, value: String| all.insert(name.to_owned(), value);
    set("PATH", DEFAULT_PATH.to_owned());
    set("HOME", places.home.to_owned());
    set("USER", places.user.to_owned());
    set("LANG", "C.UTF-8".to_owned());
    if launch.layout == TaskLayout::PerNode {
        // torchrun reads PET_<OPTION> as the default of each of its options, so that a plain
        // `torchrun train.py` finds its place in the gang.
        set("PET_NNODES", launch.nodes.to_string());
        set("PET_NPROC_PER_NODE", launch.local_world_size.to_string());
        set("PET_NODE_RANK", launch.node_rank.to_string());
        set("PET_MASTER_ADDR", launch.master_addr.clone());
        set("PET_MASTER_PORT", launch.master_port.to_string());
    }
    for (name, value) in &launch.env {
        set(name, value.clone());
    }
    set("RANK", launch.rank.to_string());
    set("WORLD_SIZE", launch.world_size.to_string());
    set("LOCAL_RANK", launch.local_rank.to_string());
    set("LOCAL_WORLD_SIZE", launch.local_world_size.to_string());
    set("NODE_RANK", launch.node_rank.to_string());
    set("MASTER_ADDR", launch.master_addr.clone());
    set("MASTER_PORT", launch.master_port.to_string());
    // Set even if it names none: without it every GPU of the node would be visible.
    set("CUDA_VISIBLE_DEVICES", joined(&launch.gpus));
    set("TIDEGATE_JOB_ID", task.attempt.job.to_string());
    set("TIDEGATE_ATTEMPT", task.attempt.number.to_string());
    set("TIDEGATE_NODES", launch.nodes.to_string());
    set("TIDEGATE_CHECKPOINT_DIR", launch.checkpoint_dir.clone());
    if let Some(socket) = places.socket {
        set("TIDEGATE_SOCKET", socket.display().to_string());
    }
    let [task, preempt_file] = marks(task, places.preempt_file);
    for (name, value) in [task, preempt_file] {
        set(name, value);
    }
    all
}

/// The variables by which the processes of one task are told from all others of the host: two
/// clusters may both have a `job-1.1.0`, in different directories.
#[must_use]
pub fn marks(task: TaskId, preempt_file: &Path) -> [(&'static str, String); 2] {
    [
        ("TIDEGATE_TASK", task.to_string()),
        ("TIDEGATE_PREEMPT_FILE", preempt_file.display().to_string()),
    ]
}

fn joined(gpus: &[GpuUuid]) -> String {
    gpus.iter().map(GpuUuid::as_str).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::{Bytes, UserId};

    fn launch(layout: TaskLayout) -> Launch {
        Launch {
            user: UserId(1000),
            command: vec!["python".into()],
            working_dir: "/w".into(),
            env: vec![
                ("HOME".into(), "/elsewhere".into()),
                ("PET_NNODES".into(), "1:4".into()),
                ("RANK".into(), "99".into()),
            ],
            gpus: vec!["GPU-a".parse().unwrap(), "GPU-b".parse().unwrap()],
            layout,
            rank: 8,
            local_rank: 0,
            world_size: 16,
            local_world_size: 8,
            node_rank: 1,
            nodes: 2,
            master_addr: "10.0.0.1".into(),
            master_port: 29500,
            checkpoint_dir: "/w/ckpt".into(),
            log_cap: Bytes(1 << 20),
            save: None,
            permit: None,
            pty: false,
        }
    }

    fn environment_of(layout: TaskLayout) -> BTreeMap<String, String> {
        let places = Places {
            preempt_file: Path::new("/t/preempt"),
            socket: Some(Path::new("/t/job.sock")),
            home: "/home/a",
            user: "a",
        };
        environment("job-7.2.1".parse().unwrap(), &launch(layout), places)
    }

    #[test]
    fn a_task_per_node_finds_torchruns_defaults_and_its_own_choices() {
        let all = environment_of(TaskLayout::PerNode);
        for (name, value) in [
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("HOME", "/elsewhere"),
            ("USER", "a"),
            ("LANG", "C.UTF-8"),
            ("PET_NNODES", "1:4"),
            ("PET_NPROC_PER_NODE", "8"),
            ("PET_NODE_RANK", "1"),
            ("PET_MASTER_ADDR", "10.0.0.1"),
            ("PET_MASTER_PORT", "29500"),
            ("RANK", "8"),
            ("WORLD_SIZE", "16"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "8"),
            ("NODE_RANK", "1"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"),
            ("TIDEGATE_JOB_ID", "job-7"),
            ("TIDEGATE_ATTEMPT", "2"),
            ("TIDEGATE_TASK", "job-7.2.1"),
            ("TIDEGATE_NODES", "2"),
            ("TIDEGATE_CHECKPOINT_DIR", "/w/ckpt"),
            ("TIDEGATE_PREEMPT_FILE", "/t/preempt"),
            ("TIDEGATE_SOCKET", "/t/job.sock"),
        ] {
            assert_eq!(all.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(all.len(), 24);
    }

    #[test]
    fn a_task_per_gpu_is_a_rank_and_gets_nothing_for_a_launcher() {
        let all = environment_of(TaskLayout::PerGpu);
        assert_eq!(all.get("PET_NNODES").map(String::as_str), Some("1:4"), "the job's own");
        assert!(!all.contains_key("PET_MASTER_ADDR"));
    }
}
