//! Tells that a shim has written into its task's directory.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tidegate_model::TaskId;

pub(super) struct Watch {
    inotify: Inotify,
    /// By the number of the watch.
    tasks: BTreeMap<i32, (TaskId, WatchDescriptor)>,
}

impl Watch {
    pub(super) fn new() -> nix::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        Ok(Self { inotify, tasks: BTreeMap::new() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Records appear by rename: a reader never sees half of one.
    pub(super) fn add(&mut self, task: TaskId, directory: &Path) -> nix::Result<()> {
        let watch = self.inotify.add_watch(directory, AddWatchFlags::IN_MOVED_TO)?;
        self.tasks.insert(watch.as_raw(), (task, watch));
        Ok(())
    }

    pub(super) fn remove(&mut self, task: TaskId) {
        let watch = self.tasks.values().find(|(other, _)| *other == task).map(|(_, watch)| *watch);
        if let Some(watch) = watch {
            self.tasks.remove(&watch.as_raw());
            // Fails only if the directory is gone, and the watch with it.
            self.inotify.rm_watch(watch).ok();
        }
    }

    /// The tasks whose directories have changed; all of them if the kernel dropped events.
    pub(super) fn changed(&self) -> nix::Result<Vec<TaskId>> {
        let mut changed = Vec::new();
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(error) => return Err(error),
            };
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    changed.extend(self.tasks.values().map(|(task, _)| *task));
                } else if let Some((task, _)) = self.tasks.get(&event.wd.as_raw()) {
                    changed.push(*task);
                }
            }
        }
        changed.sort_unstable();
        changed.dedup();
        Ok(changed)
    }
}
