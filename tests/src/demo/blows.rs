//! Which process is killed next, and what its victim should be doing at that moment. Pure.

use serde::Serialize;
use tidegate_proto::v1::AttemptState;

/// A kind of process that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A training process.
    Rank,
    /// The supervisor of one task.
    Shim,
    /// A node's starter.
    Starter,
    /// A node's agent.
    Agent,
    /// The one coordinator.
    Coordinator,
}

impl Kind {
    /// All of them, in the order in which they are first killed.
    pub const ALL: [Self; 5] =
        [Self::Rank, Self::Shim, Self::Starter, Self::Agent, Self::Coordinator];

    /// The daemons: killing one must stop nothing.
    const DAEMONS: [Self; 3] = [Self::Starter, Self::Agent, Self::Coordinator];

    /// For sentences.
    #[must_use]
    pub fn with_article(self) -> &'static str {
        match self {
            Self::Rank => "a rank",
            Self::Shim => "a shim",
            Self::Starter => "the starter",
            Self::Agent => "the agent",
            Self::Coordinator => "the coordinator",
        }
    }
}

/// One kill to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blow {
    /// Of what.
    pub kind: Kind,
    /// The state that some attempt is to be in, as the API shows it.
    pub wanted: AttemptState,
}

impl Blow {
    /// Whether it is to hit what the blow before has left: an attempt is verified for
    /// milliseconds, and for longer only after its shim has died.
    #[must_use]
    pub fn follows_at_once(&self) -> bool {
        self.wanted == AttemptState::Verifying
    }
}

/// States in which a daemon is killed, the most telling first: the first seed shows them so.
const FOR_DAEMONS: [AttemptState; 6] = [
    AttemptState::Running,
    AttemptState::Granted,
    AttemptState::Planned,
    AttemptState::Starting,
    AttemptState::Stopping,
    AttemptState::Verifying,
];

/// The kills of one run. Rounds of five, one of each kind; ten kills want every state at least
/// once, and other seeds pair states with other kinds.
#[must_use]
pub fn schedule(seed: u64, kills: usize) -> Vec<Blow> {
    (0_u64..).flat_map(|round| round_of(seed, round)).take(kills).collect()
}

fn round_of(seed: u64, round: u64) -> Vec<Blow> {
    let turn = |shift: u64| seed.wrapping_add(shift);
    let rank = pick(&[AttemptState::Running, AttemptState::Starting], turn(round));
    let daemons = (0..).zip(Kind::DAEMONS).map(|(place, kind)| {
        let shift = round.wrapping_mul(3).wrapping_add(place);
        Blow { kind, wanted: pick(&FOR_DAEMONS, turn(shift)) }
    });
    let (after_shim, others): (Vec<_>, Vec<_>) = daemons.partition(Blow::follows_at_once);
    let of_shim = [AttemptState::Running, AttemptState::Starting, AttemptState::Stopping];
    let shim = match after_shim.is_empty() {
        true => pick(&of_shim, turn(round)),
        false => AttemptState::Running,
    };
    let rank = Blow { kind: Kind::Rank, wanted: rank };
    let shim = Blow { kind: Kind::Shim, wanted: shim };
    let first = if after_shim.is_empty() { vec![rank, shim] } else { vec![rank] };
    let last = if after_shim.is_empty() { vec![] } else { vec![shim] };
    [first, others, last, after_shim].concat()
}

fn pick(states: &[AttemptState], turn: u64) -> AttemptState {
    let count = u64::try_from(states.len()).unwrap_or(1).max(1);
    let at = usize::try_from(turn.checked_rem(count).unwrap_or(0)).unwrap_or(0);
    states.get(at).copied().unwrap_or(AttemptState::Running)
}

/// A small generator of numbers, the same for the same seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Begins with a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).checked_rem(bound).unwrap_or(0)
    }

    /// One of them; none of none.
    pub fn choose<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let at = self.below(u64::try_from(of.len()).unwrap_or(0));
        of.get(usize::try_from(at).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_five_kills_one_of_each_kind() {
        for seed in 0..12 {
            let mut kinds: Vec<_> = schedule(seed, 5).iter().map(|blow| blow.kind).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, Kind::ALL, "seed {seed}");
        }
    }

    #[test]
    fn fifty_kills_in_five_runs_want_every_state_and_kind_at_least_three_times() {
        let all: Vec<_> = (0..5).flat_map(|seed| schedule(seed, 10)).collect();
        for state in FOR_DAEMONS {
            let hits = all.iter().filter(|blow| blow.wanted == state).count();
            assert!(hits >= 5, "{state:?}: {hits}");
        }
        for kind in Kind::ALL {
            assert_eq!(all.iter().filter(|blow| blow.kind == kind).count(), 10, "{kind:?}");
        }
    }

    #[test]
    fn an_attempt_is_hit_while_it_is_verified_right_after_its_shim_died() {
        for seed in 0..12 {
            let blows = schedule(seed, 50);
            let verifying = |blow: &Blow| blow.wanted == AttemptState::Verifying;
            for pair in blows.windows(2).filter(|pair| verifying(&pair[1])) {
                assert_eq!(pair[0].kind, Kind::Shim);
                assert_eq!(pair[0].wanted, AttemptState::Running);
            }
        }
    }
}
