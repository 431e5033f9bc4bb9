//! The limits of a storage target, as an admin sets them.

use std::fmt;

use tidegate_model::{Bandwidth, Span, Timestamp, UserId};

use super::{Adapted, Evidence, Flow};

/// Hours of a day with a cap of their own, at most.
const MAX_HOURS: usize = 24;

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// The lowest cap: below it a checkpoint of one GPU takes hours.
const LEAST_CAP: Bandwidth = Bandwidth(1 << 10);

/// The gates of one storage target: of what is written, and of what is read back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gate {
    /// What it may carry.
    pub rule: GateRule,
    /// Whether nobody is let through.
    pub paused: Option<Pause>,
    /// The cap that holds where it is below the rule's; none = it never was.
    pub adapted: Option<Adapted>,
    /// What permits say of it.
    pub evidence: Evidence,
}

impl Gate {
    /// The cap of a flow at an instant.
    #[must_use]
    pub fn cap_at(&self, flow: Flow, now: Timestamp) -> Option<Bandwidth> {
        let adapted = self.adapted.filter(|_| flow == Flow::Writes);
        let cap = self.rule.cap_at(flow, now)?;
        Some(adapted.map_or(cap, |adapted| adapted.cap.min(cap)))
    }
}

/// Nobody is let through who does not write yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// Since when.
    pub since: Timestamp,
    /// Whose.
    pub by: UserId,
    /// Why.
    pub reason: String,
}

/// What a target may carry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GateRule {
    /// What checkpoints may write there in a second; none = not limited.
    pub cap: Option<Bandwidth>,
    /// Most attempts that write there at a time; none = the policy's `gate_width`.
    pub writers: Option<u32>,
    /// Files that may be made there in a second; none = not limited. Holds for jobs that say how
    /// many they write.
    pub files: Option<u32>,
    /// The most that one node can write, or read; none = as much as the cap.
    pub node: Option<Bandwidth>,
    /// What restores may read there in a second; none = not limited.
    pub reads: Option<Bandwidth>,
    /// The cap follows what the target proves to carry, down to this; none = it is fixed.
    pub floor: Option<Bandwidth>,
    /// Other caps at hours of the day, in UTC. They do not overlap; where releases before accepted that, the
    /// first that covers a minute holds.
    pub hours: Vec<CapHours>,
}

/// A cap from one minute of the day until before another; over midnight if that is the earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapHours {
    /// The first minute.
    pub from: u16,
    /// The minute after the last.
    pub until: u16,
    /// What holds then.
    pub cap: Bandwidth,
}

impl CapHours {
    /// Whether some minute is in both.
    fn overlaps(&self, other: &Self) -> bool {
        self.covers(other.from) || other.covers(self.from)
    }

    fn covers(&self, minute: u16) -> bool {
        if self.from < self.until {
            (self.from..self.until).contains(&minute)
        } else {
            minute >= self.from || minute < self.until
        }
    }
}

/// `22:00 to 06:00`.
impl fmt::Display for CapHours {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, until, .. } = self;
        write!(out, "{:02}:{:02} to {:02}:{:02}", from / 60, from % 60, until / 60, until % 60)
    }
}

impl GateRule {
    /// Holds the values against their bounds.
    ///
    /// # Errors
    /// The first that is outside, and what would be accepted.
    pub fn check(&self) -> Result<(), String> {
        let caps =
            [("cap", self.cap), ("node", self.node), ("reads", self.reads), ("floor", self.floor)];
        let hours = self.hours.iter().map(|hours| ("hours", Some(hours.cap)));
        for (key, cap) in caps.into_iter().chain(hours) {
            if let Some(cap) = cap.filter(|cap| *cap < LEAST_CAP) {
                return Err(format!("{key}: {cap} given; at least {LEAST_CAP} is accepted"));
            }
        }
        if self.writers.is_some_and(|writers| !(1..=10_000).contains(&writers)) {
            let given = self.writers.unwrap_or_default();
            return Err(format!("writers: {given} given; 1 to 10000 is accepted"));
        }
        if self.files == Some(0) {
            return Err("files: 0 given; at least 1 is accepted".to_owned());
        }
        if self.hours.len() > MAX_HOURS {
            let given = self.hours.len();
            return Err(format!("hours: {given} given; at most {MAX_HOURS} are accepted"));
        }
        let of_cap = self.files.is_some() || self.floor.is_some() || !self.hours.is_empty();
        if self.cap.is_none() && of_cap {
            return Err("files, floor and hours are accepted with a cap only".to_owned());
        }
        if let (Some(floor), Some(cap)) = (self.floor, self.cap)
            && floor > cap
        {
            return Err(format!("floor: {floor} given; at most the cap, {cap}, is accepted"));
        }
        self.check_hours()
    }

    fn check_hours(&self) -> Result<(), String> {
        let never =
            |hours: &&CapHours| hours.from >= DAY || hours.until > DAY || hours.from == hours.until;
        if let Some(hours) = self.hours.iter().find(never) {
            return Err(format!(
                "hours: {hours} given, which is no time of a day; two different times are accepted, \
                 the first from 00:00 to 23:59, the other up to 24:00"
            ));
        }
        let below = |hours: &&CapHours| self.floor.is_some_and(|floor| hours.cap < floor);
        if let (Some(hours), Some(floor)) = (self.hours.iter().find(below), self.floor) {
            let given = hours.cap;
            return Err(format!(
                "hours: {given} given for {hours}; at least the floor, {floor}, is accepted"
            ));
        }
        for (place, hours) in self.hours.iter().enumerate() {
            let others = self.hours.iter().take(place);
            if let Some(other) = others.into_iter().find(|other| other.overlaps(hours)) {
                return Err(format!(
                    "hours: {other} and {hours} given, which overlap; one cap for each hour is \
                     accepted"
                ));
            }
        }
        Ok(())
    }

    /// The cap of a flow at an instant.
    #[must_use]
    pub fn cap_at(&self, flow: Flow, now: Timestamp) -> Option<Bandwidth> {
        if flow == Flow::Reads {
            return self.reads;
        }
        let minute = u16::try_from(now.0 / 60_000 % u64::from(DAY)).unwrap_or(0);
        let special = self.hours.iter().find(|hours| hours.covers(minute));
        special.map(|hours| hours.cap).or(self.cap)
    }

    /// The lowest cap of any hour.
    pub(crate) fn least_cap(&self, flow: Flow) -> Option<Bandwidth> {
        if flow == Flow::Reads {
            return self.reads;
        }
        self.hours.iter().map(|hours| hours.cap).chain(self.cap).min()
    }

    /// The next instant after `now` at which another cap may hold.
    pub(crate) fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let (day, of_day) = (u64::from(DAY) * 60_000, now.0 % (u64::from(DAY) * 60_000));
        let begins = self.hours.iter().flat_map(|hours| [hours.from, hours.until]);
        let away = begins.map(|minute| {
            let at = u64::from(minute % DAY).saturating_mul(60_000);
            if at > of_day { at.saturating_sub(of_day) } else { (day - of_day).saturating_add(at) }
        });
        away.min().map(|away| now.plus(Span(away)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hour: u64, minute: u64) -> Timestamp {
        Timestamp(((365 * 24 + hour) * 60 + minute) * 60_000)
    }

    #[test]
    fn hours_over_midnight_have_their_cap_and_end_at_their_minute() {
        let night = CapHours { from: 22 * 60, until: 6 * 60, cap: Bandwidth(1 << 30) };
        let rule =
            GateRule { cap: Some(Bandwidth(1 << 20)), hours: vec![night], ..GateRule::default() };
        assert_eq!(rule.check(), Ok(()));
        for (hour, minute, cap) in [(21, 59, 1 << 20), (22, 0, 1 << 30), (5, 59, 1 << 30)] {
            assert_eq!(
                rule.cap_at(Flow::Writes, at(hour, minute)),
                Some(Bandwidth(cap)),
                "{hour}:{minute}"
            );
        }
        assert_eq!(rule.cap_at(Flow::Writes, at(6, 0)), Some(Bandwidth(1 << 20)));
        assert_eq!(rule.next_change(at(5, 0)), Some(at(6, 0)));
        assert_eq!(rule.next_change(at(6, 0)), Some(at(22, 0)));
        assert_eq!(rule.next_change(at(22, 0)), Some(at(24 + 6, 0)));
    }

    #[test]
    fn a_limit_outside_its_bounds_is_refused_with_what_would_be_accepted() {
        let refused = |rule: GateRule| rule.check().unwrap_err();
        let base = || GateRule { cap: Some(Bandwidth(1 << 30)), ..GateRule::default() };
        assert_eq!(
            refused(GateRule { cap: Some(Bandwidth(0)), ..base() }),
            "cap: 0B/s given; at least 1KiB/s is accepted"
        );
        assert_eq!(
            refused(GateRule { writers: Some(0), ..base() }),
            "writers: 0 given; 1 to 10000 is accepted"
        );
        assert_eq!(
            refused(GateRule { files: Some(5), cap: None, ..base() }),
            "files, floor and hours are accepted with a cap only"
        );
        let never = CapHours { from: 7, until: 7, cap: Bandwidth(1 << 30) };
        assert_eq!(
            refused(GateRule { hours: vec![never], ..base() }),
            "hours: 00:07 to 00:07 given, which is no time of a day; two different times are \
             accepted, the first from 00:00 to 23:59, the other up to 24:00"
        );
        let hours =
            |from: u16, until: u16| CapHours { from: from * 60, until: until * 60, ..never };
        let low = CapHours { cap: Bandwidth(1 << 20), ..hours(9, 17) };
        let floor = Some(Bandwidth(2 << 20));
        assert_eq!(
            refused(GateRule { hours: vec![low], floor, ..base() }),
            "hours: 1MiB/s given for 09:00 to 17:00; at least the floor, 2MiB/s, is accepted"
        );
        for (one, other) in
            [((22, 6), (5, 7)), ((0, 24), (23, 1)), ((5, 7), (5, 7)), ((1, 9), (2, 3))]
        {
            let hours = vec![hours(8, 9), hours(one.0, one.1), hours(other.0, other.1)];
            let why = refused(GateRule { hours, ..base() });
            assert!(why.contains("which overlap; one cap for each hour is accepted"), "{why}");
        }
        let beside = vec![hours(22, 6), hours(6, 9), hours(20, 22)];
        assert_eq!(GateRule { hours: beside, ..base() }.check(), Ok(()));
    }
}
