//! What a year of GPU nodes looks like to their kernels, drawn from published rates: work that fails by itself,
//! our own kills, noise, and faults that are true. The table of the policy knows nothing of it.
//!
//! Rates (8 GPUs to a node): 3.8 faults of any kind in 1,000 node-days, of which GPUs are 64 % (Llama 3); 55 % of
//! them need a reset, 30 % a reboot, 15 % a new board; a fifth shows something weaker before. Programs make 1 to 10
//! errors per node-day, and bursts as they end. 2 % of nodes are ten times as bad as the others. Once in thirty days
//! 4 to 16 nodes have the same thing at once.

use fastrand::Rng;
use tidegate_health::{Holder, Own, OwnAct, PciAddress};
use tidegate_model::{AttemptId, JobId, Span, Timestamp, UserId};

pub(crate) const GPUS: u8 = 8;
const DAY: u64 = 86_400_000;
const FAULTS_PER_NODE_DAY: f64 = 0.0038 * 0.64;
const LEMONS: f64 = 0.02;
const LEMON_FACTOR: f64 = 10.0;
const USERS: u32 = 150;

pub(crate) struct Options {
    pub(crate) nodes: u32,
    pub(crate) days: u64,
    /// How many false signals, as a multiple of what is published.
    pub(crate) rate: f64,
    pub(crate) seed: u64,
}

/// What came, when.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Came {
    Line(String),
    /// The recovery action as it was read after that.
    Asks(PciAddress, Option<u32>),
}

/// How true it is that a node, or a GPU of it, is to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Truth {
    /// It runs, and is to be seen to.
    Degraded,
    /// What runs there is lost.
    Fatal,
}

/// A year of a node.
#[derive(Default)]
pub(crate) struct Node {
    /// In the order of time.
    pub(crate) came: Vec<(Timestamp, Came)>,
    pub(crate) own: Vec<OwnAct>,
    pub(crate) holders: Vec<Holder>,
    /// What truly failed.
    pub(crate) truths: Vec<(Timestamp, Truth)>,
    /// When it was one of many that had the same.
    pub(crate) shared: Vec<Timestamp>,
    /// Whose work failed by itself, and when.
    pub(crate) crashes: Vec<(Timestamp, UserId)>,
}

pub(crate) fn gpu(number: u8) -> PciAddress {
    format!("0000:{:02x}:00", 0x1a + number * 8).parse().expect("an address")
}

pub(crate) fn nodes(options: &Options) -> Vec<Node> {
    let mut rng = Rng::with_seed(options.seed);
    // Programs that are wrong, wherever they run.
    let buggy: Vec<UserId> = (0..USERS).filter(|_| rng.f64() < 0.05).map(UserId).collect();
    let mut nodes: Vec<Node> = (0..options.nodes)
        .map(|number| {
            let rng = Rng::with_seed(rng.u64(..));
            let lemon = rng.clone().f64() < LEMONS;
            let drawn = Draw { node: Node::default(), rng, options, buggy: &buggy, number };
            drawn.year(if lemon { LEMON_FACTOR } else { 1.0 })
        })
        .collect();
    share(&mut nodes, options, &mut rng);
    for node in &mut nodes {
        node.came.sort_by_key(|(at, _)| *at);
    }
    nodes
}

struct Draw<'a> {
    node: Node,
    rng: Rng,
    options: &'a Options,
    buggy: &'a [UserId],
    number: u32,
}

fn xid(gpu_of: PciAddress, code: u32, words: &str) -> String {
    format!("NVRM: Xid (PCI:{gpu_of}): {code}, {words}")
}

impl Draw<'_> {
    fn year(mut self, factor: f64) -> Node {
        self.work();
        for day in 0..self.options.days {
            self.noise(day);
            if self.rng.f64() < FAULTS_PER_NODE_DAY * factor {
                let at = Timestamp(day * DAY + self.rng.u64(0..DAY));
                self.fault(at);
            }
        }
        self.node
    }

    /// Jobs follow each other on the GPUs, which are divided anew now and then.
    fn work(&mut self) {
        let end = self.options.days * DAY;
        let (mut at, mut job) = (0, u64::from(self.number) << 32);
        while at < end {
            let until = at + Span::hours(self.rng.u64(4..48)).0;
            let size = [1_u8, 2, 4, 8, 8, 8][self.rng.usize(0..6)];
            for slot in 0..GPUS / size {
                let gpus: Vec<_> = (0..size).map(|one| gpu(slot * size + one)).collect();
                let mut from = at;
                while from < until {
                    // Mostly hours, often minutes.
                    let most = if self.rng.u8(0..4) == 0 { 20 } else { 1200 };
                    let lasts = Span::minutes(self.rng.u64(1..most)).0;
                    let to = (from + lasts).min(until);
                    job += 1;
                    self.job(job, &gpus, Timestamp(from), Timestamp(to));
                    from = to + 5000;
                }
            }
            at = until + 10_000;
        }
    }

    fn job(&mut self, job: u64, gpus: &[PciAddress], from: Timestamp, to: Timestamp) {
        let user = UserId(self.rng.u32(0..USERS) * self.rng.u32(0..USERS) / USERS);
        let attempt = AttemptId { job: JobId(job), number: 1 };
        self.node.holders.push(Holder {
            attempt,
            user,
            gpus: gpus.to_vec(),
            from,
            until: Some(to),
        });
        let crashes = self.rng.f64() < if self.buggy.contains(&user) { 0.7 } else { 0.08 };
        if crashes {
            self.node.crashes.push((to, user));
            let code = [13, 31, 31, 43, 109][self.rng.usize(0..5)];
            let some = self.rng.usize(1..=gpus.len());
            for one in &gpus[..some] {
                self.line(to, 3000, xid(*one, code, "pid=77, name=python3, words"));
                self.asks(to, *one, 0);
            }
            self.channels(gpus, to);
        } else if self.rng.u8(0..5) < 3 {
            // It was asked to leave, cancelled or over its time: we end what is left of it.
            let gpus = gpus.to_vec();
            self.node.own.push(OwnAct { what: Own::Kill, at: to, gpus: gpus.clone() });
            if self.rng.bool() {
                self.channels(&gpus, to);
            }
        }
    }

    /// Channels that are removed as processes end: one line for each, in bursts.
    fn channels(&mut self, gpus: &[PciAddress], at: Timestamp) {
        for one in gpus {
            for channel in 0..self.rng.u32(1..12) {
                let words = format!("pid=77, name=python3, Ch {channel:08x}");
                self.line(at, 20_000, xid(*one, 45, &words));
            }
        }
    }

    fn line(&mut self, at: Timestamp, within: u64, line: String) {
        let at = at.plus(Span(self.rng.u64(0..within.max(1))));
        self.node.came.push((at, Came::Line(line)));
    }

    fn asks(&mut self, at: Timestamp, of: PciAddress, value: u32) {
        // Now and then the driver is slow to say it.
        let value = (self.rng.u16(0..500) > 0).then_some(value);
        self.node.came.push((at.plus(Span(500)), Came::Asks(of, value)));
    }

    /// Signals that say nothing of the hardware.
    fn noise(&mut self, day: u64) {
        let rate = self.options.rate;
        let any = |rng: &mut Rng| Timestamp(day * DAY + rng.u64(0..DAY));
        let programs = (self.rng.f64() * 9.0 + 1.0) * rate;
        for _ in 0..whole(programs, &mut self.rng) {
            let (at, of) = (any(&mut self.rng), gpu(self.rng.u8(0..GPUS)));
            let code = [13, 31, 43, 45, 45][self.rng.usize(0..5)];
            self.line(at, 1, xid(of, code, "pid=9, name=python3, words"));
        }
        let seldom: [(f64, &dyn Fn(PciAddress) -> String); 13] = [
            (0.02, &|of| xid(of, 63, "Row Remapper: New row marked for remapping")),
            (0.02, &|of| xid(of, 92, "High single-bit ECC error rate")),
            (0.02, &|of| xid(of, 137, "pid=9, name=x, NVLink: privilege error")),
            (0.01, &|of| xid(of, 121, "C2C correctable")),
            (0.05, &|of| xid(of, 149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 5 (0x00000013 0x0)")),
            (0.01, &|of| xid(of, 74, "NVLink: link 6(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")),
            (0.01, &|of| xid(of, 154, "action changed from 0x1 (GPU Reset) to 0x0 (None)")),
            (0.05, &|_| switch(22013, "Non-fatal", "Minion Link DLREQ interrupt")),
            (0.05, &|_| switch(20001, "Non-fatal", "TX Replay Error")),
            (0.01, &|_| switch(20034, "Fatal", "LTSSM Fault Up")),
            (0.05, &|of| format!("nvidia {of}.0: AER: aer_status severity=Corrected")),
            (0.002, &|of| xid(of, 999, "of a later driver")),
            (0.002, &|of| format!("NVRM: Xid ({of}) written otherwise")),
        ];
        for (often, words) in seldom {
            for _ in 0..whole(often * rate, &mut self.rng) {
                let (at, of) = (any(&mut self.rng), gpu(self.rng.u8(0..GPUS)));
                self.line(at, 1, words(of));
            }
        }
    }

    /// A GPU fails.
    fn fault(&mut self, at: Timestamp) {
        let of = gpu(self.rng.u8(0..GPUS));
        if self.rng.u8(0..5) == 0 {
            let before = Timestamp(at.0.saturating_sub(Span::minutes(self.rng.u64(5..300)).0));
            let weak = [(63, "row"), (92, "rate"), (31, "MMU Fault")][self.rng.usize(0..3)];
            self.line(before, 1, xid(of, weak.0, weak.1));
        }
        match self.rng.u8(0..100) {
            0..=54 => self.needs_reset(at, of),
            55..=84 => self.needs_reboot(at, of),
            _ => self.needs_board(at, of),
        }
    }

    fn true_fault(&mut self, at: Timestamp, truth: Truth) {
        self.node.truths.push((at, truth));
    }

    fn needs_reset(&mut self, at: Timestamp, of: PciAddress) {
        let (code, truth, storm) = [
            (48, Truth::Fatal, 2),
            (95, Truth::Fatal, 3000),
            (119, Truth::Fatal, 40),
            (62, Truth::Fatal, 1),
            (46, Truth::Fatal, 1),
            (158, Truth::Fatal, 1),
            (109, Truth::Fatal, 3),
            (94, Truth::Degraded, 1),
            (140, Truth::Fatal, 1),
        ][self.rng.usize(0..9)];
        self.true_fault(at, truth);
        for _ in 0..storm {
            self.line(at, 60_000, xid(of, code, "pid=77, name=python3, words"));
        }
        self.asks(at, of, if truth == Truth::Fatal { 1 } else { 4 });
        self.sympathy(at, of);
    }

    fn needs_reboot(&mut self, at: Timestamp, of: PciAddress) {
        self.true_fault(at, Truth::Fatal);
        match self.rng.u8(0..3) {
            0 => {
                self.line(at, 1, xid(of, 79, "pid='<unknown>', GPU has fallen off the bus."));
                // It asks for less than it needs.
                self.asks(at, of, 1);
                if self.rng.bool() {
                    self.line(at, 2000, switch(20034, "Fatal", "LTSSM Fault Up"));
                }
            }
            1 => self.line(at, 1, format!("NVRM: GPU at PCI:{of}: GPU has fallen off the bus.")),
            _ => self.line(at, 1, format!("nvidia {of}.0: AER: severity=Uncorrected (Fatal)")),
        }
        self.sympathy(at, of);
    }

    fn needs_board(&mut self, at: Timestamp, of: PciAddress) {
        self.true_fault(at, Truth::Fatal);
        match self.rng.u8(0..3) {
            0 => self.line(at, 1, xid(of, 64, "Row Remapper: Failed to remap row")),
            1 => {
                self.line(at, 1, xid(of, 48, "DBE"));
                self.line(at, 2000, xid(of, 64, "Row Remapper: Failed to remap row"));
            }
            _ => self.line(at, 1, xid(of, 143, "GPU initialization error")),
        }
        self.sympathy(at, of);
    }

    /// What ran on it dies with it.
    fn sympathy(&mut self, at: Timestamp, of: PciAddress) {
        if self.rng.bool() {
            self.channels(&[of], at.plus(Span::seconds(1)));
        }
    }
}

fn switch(code: u32, severity: &str, words: &str) -> String {
    format!("nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): {code}, {severity}, Link 28 {words}")
}

/// A number of events with that mean: its whole part, and one more with the rest's probability.
fn whole(mean: f64, rng: &mut Rng) -> u32 {
    let (mut count, mut left) = (0, mean);
    while left >= 1.0 {
        (count, left) = (count + 1, left - 1.0);
    }
    count + u32::from(rng.f64() < left)
}

/// Many nodes have the same at once: a driver is replaced under them, or a leaf switch is away.
fn share(nodes: &mut [Node], options: &Options, rng: &mut Rng) {
    for month in 0..options.days / 30 {
        let at = Timestamp(month * 30 * DAY + rng.u64(0..30 * DAY));
        let count = rng.usize(4..=16).min(nodes.len());
        let first = rng.usize(0..=nodes.len() - count);
        let is_push = rng.bool();
        for node in &mut nodes[first..first + count] {
            node.shared.push(at);
            for number in 0..GPUS {
                let late = at.plus(Span(rng.u64(0..120_000)));
                let words = if is_push {
                    xid(gpu(number), 45, "pid=1, name=nvidia-persiste, Ch 00000000")
                } else {
                    xid(gpu(number), 74, "NVLink: fatal error detected on link 6")
                };
                node.came.push((late, Came::Line(words)));
            }
            if is_push {
                let late = at.plus(Span(rng.u64(0..120_000)));
                let words = "NVRM: The NVIDIA probe routine failed for 8 device(s).".to_owned();
                node.came.push((late, Came::Line(words)));
            }
        }
    }
}
