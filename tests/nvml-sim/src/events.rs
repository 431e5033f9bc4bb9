//! Event sets: who registered for what, and what waits to be picked up.

use std::collections::{BTreeMap, VecDeque};

use nvml_wrapper_sys::bindings::{
    nvmlEventSet_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT, nvmlReturn_t,
};

/// A set nobody waits on keeps the newest; NVML's own bound is not documented.
const MAX_QUEUED: usize = 1024;

/// All event sets of the process.
#[derive(Debug, Default)]
pub(crate) struct EventSets {
    /// The number of sets ever made: an id is never given twice, so a stale one is noticed.
    made: usize,
    sets: BTreeMap<usize, EventSet>,
}

#[derive(Debug, Default)]
struct EventSet {
    /// Event types by the GPU's slot.
    registered: BTreeMap<usize, u64>,
    queue: VecDeque<Event>,
}

/// Something that happened to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) slot: usize,
    /// One of NVML's event type bits.
    pub(crate) kind: u64,
    /// The Xid, for Xid events.
    pub(crate) data: u64,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
}

impl EventSets {
    pub(crate) fn create(&mut self) -> nvmlEventSet_t {
        self.made += 1;
        self.sets.insert(self.made, EventSet::default());
        std::ptr::without_provenance_mut(self.made)
    }

    pub(crate) fn free(&mut self, set: nvmlEventSet_t) -> Result<(), nvmlReturn_t> {
        self.sets.remove(&set.addr()).map(drop).ok_or(INVALID_ARGUMENT)
    }

    pub(crate) fn free_all(&mut self) {
        self.sets.clear();
    }

    pub(crate) fn register(
        &mut self,
        set: nvmlEventSet_t,
        slot: usize,
        kinds: u64,
    ) -> Result<(), nvmlReturn_t> {
        let set = self.sets.get_mut(&set.addr()).ok_or(INVALID_ARGUMENT)?;
        *set.registered.entry(slot).or_default() |= kinds;
        Ok(())
    }

    /// Puts an event into the sets registered for it. Returns how many those are.
    pub(crate) fn deliver(&mut self, event: Event) -> usize {
        let mut delivered = 0;
        for set in self.sets.values_mut() {
            let kinds = set.registered.get(&event.slot).copied().unwrap_or(0);
            if kinds & event.kind == 0 {
                continue;
            }
            if set.queue.len() == MAX_QUEUED {
                set.queue.pop_front();
            }
            set.queue.push_back(event);
            delivered += 1;
        }
        delivered
    }

    pub(crate) fn take(&mut self, set: nvmlEventSet_t) -> Result<Option<Event>, nvmlReturn_t> {
        let set = self.sets.get_mut(&set.addr()).ok_or(INVALID_ARGUMENT)?;
        Ok(set.queue.pop_front())
    }

    /// The slots of the GPUs a set watches.
    pub(crate) fn watched(
        &self,
        set: nvmlEventSet_t,
    ) -> Result<impl Iterator<Item = usize>, nvmlReturn_t> {
        let set = self.sets.get(&set.addr()).ok_or(INVALID_ARGUMENT)?;
        Ok(set.registered.keys().copied())
    }
}
