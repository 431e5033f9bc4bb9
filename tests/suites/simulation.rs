//! The seeded simulation: seeds hold, repeat themselves, and find what is planted.

use cluster_tests::sim::{self, Options, Planted};

fn run(seed: u64, steps: u64, planted: Option<Planted>) -> sim::Run {
    sim::run(Options { seed, steps, planted, verbose: false })
}

#[test]
fn a_seed_holds_every_invariant_and_repeats_itself() {
    let first = run(1, 1500, None);
    assert_eq!(first.violation, None);
    assert_eq!(first, run(1, 1500, None));
    assert_ne!(first.trace, run(2, 1500, None).trace);
    assert!(first.most_alive >= 20, "{} jobs were alive at most", first.most_alive);
}

#[test]
fn every_planted_bug_is_found() {
    for planted in Planted::ALL {
        let found = (1..30).find_map(|seed| run(seed, 3000, Some(planted)).violation);
        assert!(found.is_some(), "{planted:?} is not found");
    }
}
