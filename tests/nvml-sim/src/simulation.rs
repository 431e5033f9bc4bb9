//! The one simulation of a process: the machine, what the script does to calls, and the calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{
    nvmlEventSet_t, nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
    nvmlReturn_t,
};

use crate::events::Event;
use crate::machine::Machine;
use crate::{control, description};

const FILE_VARIABLE: &str = "TIDEGATE_NVML_SIM";
const SOCKET_VARIABLE: &str = "TIDEGATE_NVML_SIM_SOCKET";
/// As a function's name, all functions.
pub(crate) const EVERY_FUNCTION: &str = "*";

/// Orders calls of all threads and commands; never held while a call is delayed or hangs.
static SIMULATION: Mutex<Simulation> = Mutex::new(Simulation::new());
/// Wakes calls that wait for an event or hang.
static CHANGED: Condvar = Condvar::new();

/// What the process shares.
#[derive(Debug)]
pub(crate) struct Simulation {
    /// `None` before the first successful initialisation.
    pub(crate) machine: Option<Machine>,
    pub(crate) script: Script,
    /// Number of calls by function.
    pub(crate) calls: BTreeMap<&'static str, u64>,
    /// Initialisations without their shutdown.
    users: u32,
}

/// What happens to calls before they are answered, by function or [`EVERY_FUNCTION`].
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) failures: BTreeMap<String, nvmlReturn_t>,
    pub(crate) delays: BTreeMap<String, Duration>,
    pub(crate) hanging: BTreeSet<String>,
}

impl Simulation {
    const fn new() -> Self {
        let script =
            Script { failures: BTreeMap::new(), delays: BTreeMap::new(), hanging: BTreeSet::new() };
        Self { machine: None, script, calls: BTreeMap::new(), users: 0 }
    }
}

impl Script {
    fn failure(&self, function: &str) -> Option<nvmlReturn_t> {
        self.failures.get(function).or_else(|| self.failures.get(EVERY_FUNCTION)).copied()
    }

    fn delay(&self, function: &str) -> Option<Duration> {
        self.delays.get(function).or_else(|| self.delays.get(EVERY_FUNCTION)).copied()
    }

    fn hangs(&self, function: &str) -> bool {
        self.hanging.contains(function) || self.hanging.contains(EVERY_FUNCTION)
    }
}

/// Changes the simulation, and wakes the calls that may wait for that.
pub(crate) fn change<T>(change: impl FnOnce(&mut Simulation) -> T) -> T {
    let changed = change(&mut lock());
    CHANGED.notify_all();
    changed
}

/// Answers one call of a caller that has initialised.
pub(crate) fn call(
    function: &'static str,
    answer: impl FnOnce(&mut Machine) -> Result<(), nvmlReturn_t>,
) -> nvmlReturn_t {
    let answered = enter(function).and_then(|mut simulation| answer(simulation.in_use()?));
    answered.err().unwrap_or(SUCCESS)
}

/// `nvmlInit`. The first one reads the file and opens the socket.
pub(crate) fn initialise(function: &'static str) -> nvmlReturn_t {
    let initialised = load().and_then(|()| enter(function)).map(|mut simulation| {
        simulation.users = simulation.users.saturating_add(1);
    });
    initialised.err().unwrap_or(SUCCESS)
}

/// `nvmlShutdown`.
pub(crate) fn shut_down(function: &'static str) -> nvmlReturn_t {
    let shut = enter(function).and_then(|mut simulation| {
        simulation.in_use()?;
        simulation.users -= 1;
        if simulation.users == 0 {
            simulation.machine.iter_mut().for_each(|machine| machine.events.free_all());
            CHANGED.notify_all();
        }
        Ok(())
    });
    shut.err().unwrap_or(SUCCESS)
}

/// `nvmlEventSetWait`. Queued events come before the news that a watched GPU is lost.
pub(crate) fn wait_for_event(
    function: &'static str,
    set: nvmlEventSet_t,
    timeout: Duration,
) -> Result<Event, nvmlReturn_t> {
    let deadline = Instant::now() + timeout;
    let mut simulation = enter(function)?;
    loop {
        let machine = simulation.in_use()?;
        if let Some(event) = machine.events.take(set)? {
            return Ok(event);
        }
        let lost = |slot: usize| machine.gpus.get(slot).is_none_or(|gpu| gpu.lost);
        if machine.events.watched(set)?.any(lost) {
            return Err(GPU_IS_LOST);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TIMEOUT);
        }
        simulation =
            CHANGED.wait_timeout(simulation, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

impl Simulation {
    fn in_use(&mut self) -> Result<&mut Machine, nvmlReturn_t> {
        if self.users == 0 {
            return Err(UNINITIALIZED);
        }
        self.machine.as_mut().ok_or(UNINITIALIZED)
    }
}

/// Counts a call and does to it what the script says.
fn enter(function: &'static str) -> Result<MutexGuard<'static, Simulation>, nvmlReturn_t> {
    let mut simulation = lock();
    *simulation.calls.entry(function).or_default() += 1;
    if let Some(delay) = simulation.script.delay(function) {
        drop(simulation);
        std::thread::sleep(delay);
        simulation = lock();
    }
    simulation = CHANGED
        .wait_while(simulation, |simulation| simulation.script.hangs(function))
        .unwrap_or_else(PoisonError::into_inner);
    match simulation.script.failure(function) {
        Some(code) => Err(code),
        None => Ok(simulation),
    }
}

fn load() -> Result<(), nvmlReturn_t> {
    let mut simulation = lock();
    if simulation.machine.is_some() {
        return Ok(());
    }
    let Some(file) = std::env::var_os(FILE_VARIABLE) else { return Err(DRIVER_NOT_LOADED) };
    let loaded = std::fs::read_to_string(&file)
        .map_err(|error| error.to_string())
        .and_then(|text| description::parse(&text))
        .map_err(|why| format!("{FILE_VARIABLE}={}: {why}", file.display()))
        .and_then(|(machine, script)| {
            simulation.machine = Some(machine);
            script.into_iter().try_for_each(|command| command.obey(&mut simulation).map(drop))
        })
        .and_then(|()| {
            let Some(path) = std::env::var_os(SOCKET_VARIABLE) else { return Ok(()) };
            control::serve(path.as_ref())
                .map_err(|error| format!("{SOCKET_VARIABLE}={}: {error}", path.display()))
        });
    loaded.map_err(|why| {
        simulation.machine = None;
        complain(&why);
        UNKNOWN
    })
}

/// NVML has no way to say what is wrong with a file.
#[expect(clippy::print_stderr, reason = "a library in somebody else's process has no log")]
fn complain(why: &str) {
    eprintln!("nvml-sim: {why}");
}

/// A panic elsewhere is no reason for every later call to fail too.
fn lock() -> MutexGuard<'static, Simulation> {
    SIMULATION.lock().unwrap_or_else(PoisonError::into_inner)
}
