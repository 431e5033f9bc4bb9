//! Notices that are to be posted: in which order, how often, and when one is given up. No clock,
//! socket or file here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_model::{DecisionSeq, Span, Timestamp};

use super::Notice;
use super::cursor::Position;

/// Notices that wait for one address: whoever is further behind learns little from each. The oldest
/// goes, and the next that is posted says how many did.
const MAX_WAITING_FOR_ONE: usize = 100;

/// Notices that wait in all. The journal holds the rest until there is room.
const MAX_WAITING: usize = 1000;

/// Posts under way: each holds a socket.
const MAX_POSTS: usize = 16;

/// How a post is tried again.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// After the first failure; doubles with each.
    pub first_pause: Span,
    /// The longest.
    pub longest_pause: Span,
    /// A notice that is older is given up: it is no news any more.
    pub no_news_after: Span,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first_pause: Span::seconds(1),
            longest_pause: Span::minutes(5),
            no_news_after: Span::hours(6),
        }
    }
}

/// What became of a post.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Posted {
    /// It was taken.
    Taken,
    /// It may be taken another time.
    Again(String),
    /// It never will be.
    Refused(String),
}

/// A notice that is posted now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// Where.
    pub url: String,
    /// What.
    pub notice: Notice,
    /// Notices for this address that were dropped before it.
    pub missed: u64,
}

/// What waits for one address; its notices are posted one after the other, in order.
#[derive(Debug, Default)]
struct Target {
    waiting: VecDeque<Notice>,
    under_way: bool,
    not_before: Timestamp,
    failures: u32,
    missed: u64,
}

/// All that wait.
#[derive(Debug)]
pub struct Queue {
    pace: Pace,
    read_up_to: DecisionSeq,
    targets: BTreeMap<String, Target>,
    /// Posted or given up, of records that are not all so.
    done: BTreeSet<(u64, String)>,
}

impl Queue {
    /// From a position on.
    #[must_use]
    pub fn from(position: Position, pace: Pace) -> Self {
        let Position { up_to, done } = position;
        Self { pace, read_up_to: DecisionSeq(up_to), targets: BTreeMap::new(), done }
    }

    /// The record up to which the journal was read.
    #[must_use]
    pub fn read_up_to(&self) -> DecisionSeq {
        self.read_up_to
    }

    /// Whether more may be read of the journal.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.targets.values().map(|target| target.waiting.len()).sum::<usize>() < MAX_WAITING
    }

    /// Takes what was read, up to a record. Answers the notices that had to go.
    pub fn take(&mut self, notices: Vec<Notice>, up_to: DecisionSeq) -> Vec<Notice> {
        let mut dropped = Vec::new();
        for notice in notices {
            let Some(url) = notice.url.clone() else { continue };
            if self.done.contains(&key(&notice)) {
                continue;
            }
            let target = self.targets.entry(url).or_default();
            target.waiting.push_back(notice);
            if target.waiting.len() > MAX_WAITING_FOR_ONE {
                // The first may be under way.
                let oldest = usize::from(target.under_way);
                target.missed = target.missed.saturating_add(1);
                dropped.extend(target.waiting.remove(oldest));
            }
        }
        self.done.extend(dropped.iter().map(key));
        self.read_up_to = up_to;
        self.tidy();
        dropped
    }

    /// What may be posted now, and what is given up because it is no news any more.
    pub fn due(&mut self, now: Timestamp) -> (Vec<Post>, Vec<Notice>) {
        let (mut posts, mut old) = (Vec::new(), Vec::new());
        let mut under_way = self.targets.values().filter(|target| target.under_way).count();
        for (url, target) in &mut self.targets {
            if target.under_way || target.not_before > now {
                continue;
            }
            let is_old =
                |notice: &Notice| now.since(notice.fact.stamp.at) > self.pace.no_news_after;
            while let Some(notice) = target.waiting.pop_front_if(|notice| is_old(notice)) {
                target.missed = target.missed.saturating_add(1);
                old.push(notice);
            }
            let Some(notice) = target.waiting.front().filter(|_| under_way < MAX_POSTS) else {
                continue;
            };
            (target.under_way, under_way) = (true, under_way.saturating_add(1));
            let (url, notice, missed) = (url.clone(), notice.clone(), target.missed);
            posts.push(Post { url, notice, missed });
        }
        self.done.extend(old.iter().map(key));
        self.tidy();
        (posts, old)
    }

    /// Notes what became of a post.
    pub fn settle(&mut self, post: &Post, posted: &Posted, now: Timestamp) {
        let Some(target) = self.targets.get_mut(&post.url) else { return };
        target.under_way = false;
        match posted {
            Posted::Taken | Posted::Refused(_) => {
                target.waiting.pop_front();
                (target.failures, target.not_before) = (0, now);
                target.missed = match posted {
                    Posted::Refused(_) => target.missed.saturating_add(1),
                    Posted::Taken | Posted::Again(_) => target.missed.saturating_sub(post.missed),
                };
                self.done.insert(key(&post.notice));
            }
            Posted::Again(_) => {
                let doubled = self.pace.first_pause.0 << target.failures.min(20);
                target.not_before = now.plus(Span(doubled.min(self.pace.longest_pause.0)));
                target.failures = target.failures.saturating_add(1);
            }
        }
        self.tidy();
    }

    /// When something is due that waits only for time.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let (busy, idle): (Vec<_>, Vec<_>) =
            self.targets.values().partition(|target| target.under_way);
        if busy.len() >= MAX_POSTS {
            return None;
        }
        idle.into_iter()
            .filter(|target| !target.waiting.is_empty())
            .map(|target| target.not_before)
            .min()
    }

    /// How far they are posted.
    #[must_use]
    pub fn position(&self) -> Position {
        let waiting = self.targets.values().flat_map(|target| &target.waiting);
        let first = waiting.map(|notice| notice.fact.stamp.seq.0).min();
        let up_to = first.map_or(self.read_up_to.0, |first| first.saturating_sub(1));
        let done = self.done.iter().filter(|(record, _)| *record > up_to).cloned().collect();
        Position { up_to, done }
    }

    fn tidy(&mut self) {
        self.targets.retain(|_, target| !target.waiting.is_empty() || target.missed > 0);
        // Whoever missed some and gets none any more is not remembered for ever.
        while self.targets.len() > MAX_WAITING {
            let idle = self.targets.iter().find(|(_, target)| target.waiting.is_empty());
            let Some(idle) = idle.map(|(url, _)| url.clone()) else { break };
            self.targets.remove(&idle);
        }
        self.done = self.position().done;
    }
}

fn key(notice: &Notice) -> (u64, String) {
    (notice.fact.stamp.seq.0, notice.fact.id())
}

#[cfg(test)]
mod tests {
    use scheduler_core::Stamp;
    use tidegate_model::{AttemptId, JobId, UserId};

    use super::*;
    use crate::notices::{Fact, Kind};

    fn notice(record: u64, url: &str) -> Notice {
        let (seq, at) = (DecisionSeq(record), Timestamp(record));
        let attempt = Some(AttemptId { job: JobId(record), number: 1 });
        let stamp = Stamp { at, seq };
        Notice {
            fact: Fact { stamp, job: JobId(record), attempt, kind: Kind::Running },
            user: UserId(1),
            name: "n".into(),
            account: "a".into(),
            text: "t".into(),
            url: Some(url.into()),
        }
    }

    fn queue(records: &[(u64, &str)]) -> Queue {
        let mut queue = Queue::from(Position::default(), Pace::default());
        let notices: Vec<_> = records.iter().map(|(record, url)| notice(*record, url)).collect();
        let up_to = records.iter().map(|(record, _)| *record).max().unwrap();
        assert!(queue.take(notices, DecisionSeq(up_to)).is_empty());
        queue
    }

    fn records(posts: &[Post]) -> Vec<u64> {
        posts.iter().map(|post| post.notice.fact.stamp.seq.0).collect()
    }

    #[test]
    fn one_address_gets_its_notices_in_order_and_holds_up_no_other() {
        let mut queue = queue(&[(1, "a"), (2, "a"), (3, "b")]);
        let (posts, _) = queue.due(Timestamp(10));
        assert_eq!(records(&posts), [1, 3]);
        assert!(queue.due(Timestamp(10)).0.is_empty(), "both are under way");
        queue.settle(&posts[0], &Posted::Again("500".into()), Timestamp(10));
        queue.settle(&posts[1], &Posted::Taken, Timestamp(10));
        let expected = Position { up_to: 0, done: [(3, "job-3.1:running".to_owned())].into() };
        assert_eq!(queue.position(), expected, "what is posted is known beside what is not");
        assert_eq!(queue.next_due(), Some(Timestamp(1010)));
        let (posts, _) = queue.due(Timestamp(1010));
        assert_eq!(records(&posts), [1], "the same again");
        queue.settle(&posts[0], &Posted::Again("500".into()), Timestamp(1010));
        assert_eq!(queue.next_due(), Some(Timestamp(3010)), "the pause doubles");
        let (posts, _) = queue.due(Timestamp(3010));
        queue.settle(&posts[0], &Posted::Refused("404".into()), Timestamp(3010));
        let (posts, _) = queue.due(Timestamp(3010));
        assert_eq!((records(&posts), posts[0].missed), (vec![2], 1), "and says that one is missed");
        queue.settle(&posts[0], &Posted::Taken, Timestamp(3010));
        assert_eq!(queue.position(), Position { up_to: 3, done: BTreeSet::new() });
    }

    #[test]
    fn after_a_restart_what_was_posted_is_not_posted_again_and_the_rest_is() {
        let mut before = queue(&[(1, "a"), (2, "b")]);
        let (posts, _) = before.due(Timestamp(10));
        before.settle(&posts[1], &Posted::Taken, Timestamp(10));
        let mut after = Queue::from(before.position(), Pace::default());
        assert_eq!(after.read_up_to(), DecisionSeq(0));
        after.take(vec![notice(1, "a"), notice(2, "b")], DecisionSeq(2));
        assert_eq!(records(&after.due(Timestamp(10)).0), [1]);
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_old_is_given_up() {
        let mut queue = Queue::from(Position::default(), Pace::default());
        let many = (1..=150).map(|record| notice(record, "a")).collect();
        let dropped = queue.take(many, DecisionSeq(150));
        assert_eq!(dropped.len(), 50);
        let (posts, _) = queue.due(Timestamp(200));
        assert_eq!((records(&posts), posts[0].missed), (vec![51], 50));
        queue.settle(&posts[0], &Posted::Taken, Timestamp(200));
        let late = Timestamp(Span::hours(6).0 + 100);
        let (posts, old) = queue.due(late);
        assert_eq!((old.len(), records(&posts)), (48, vec![100]));
        assert!(queue.has_room());
        for address in 0..10 {
            let url = format!("b{address}");
            let many = (151..=251).map(|record| notice(record, &url)).collect();
            queue.take(many, DecisionSeq(251));
        }
        assert!(!queue.has_room());
    }
}
