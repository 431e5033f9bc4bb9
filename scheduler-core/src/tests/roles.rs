//! Who may ask for what: every request of people against every role, as one table.
//!
//! The jobs are of `owner`, in `p/x`; `above` manages `p`, `here` manages `p/x` and `p/w`, `elsewhere`
//! manages `q`, `member` and `reader` are named in `p/x`. `owner` was a member when it submitted, and
//! is named nowhere any more. What is refused changes nothing, and its words name who may.
//!
//! A change of the policy is not among them: it comes to the core without a name, after the
//! coordinator's ingress has asked whether an admin sends it.

use tidegate_model::{DecisionSeq, JobId, JobSpec, Span, SubmitKey, UserId};

use super::lab::Lab;
use crate::{AccountRequest, Amount, Books, Cut, Decision, Event, JobRequest, Role, Size, Stamp};

const WHO: [(&str, u32); 9] = [
    ("admin", 1),
    ("root", 2),
    ("above", 3),
    ("here", 4),
    ("elsewhere", 5),
    ("member", 6),
    ("reader", 7),
    ("nobody", 8),
    ("owner", 9),
];

const TABLE: &str = "
                            admin root above here elsewhere member reader nobody owner
make s                      yes   yes  -     -    -         -      -      -      -      a manager of root
set p                       yes   yes  -     -    -         -      -      -      -      a manager of root
make p/new                  yes   yes  yes   -    -         -      -      -      -      a manager of p
set p/x                     yes   yes  yes   -    -         -      -      -      -      a manager of p
delete p/w                  yes   yes  yes   -    -         -      -      -      -      a manager of p
answer p/x                  yes   yes  yes   -    -         -      -      -      -      a manager of p
answer p/x no               yes   yes  yes   -    -         -      -      -      -      a manager of p
transfer p/x p/w            yes   yes  yes   yes  -         -      -      -      -      a manager of p/x
transfer q p/w              yes   yes  -     -    yes       -      -      -      -      a manager of q
make q/new                  yes   yes  -     -    yes       -      -      -      -      a manager of q
ask p/x                     yes   yes  yes   yes  -         yes    -      -      -      a member or manager of p/x
role root                   yes   yes  -     -    -         -      -      -      -      a manager of root
role p                      yes   yes  yes   -    -         -      -      -      -      a manager of p
role p/x                    yes   yes  yes   yes  -         -      -      -      -      a manager of p/x
submit p/x                  yes   yes  yes   yes  -         yes    -      -      -      a member or manager of p/x
submit p/w                  yes   yes  yes   yes  -         -      -      -      -      a member or manager of p/w
cancel                      yes   yes  yes   yes  -         -      -      -      yes    its owner
park                        yes   yes  yes   yes  -         -      -      -      yes    its owner
release                     yes   yes  yes   yes  -         -      -      -      yes    its owner
allow-elder                 yes   yes  yes   yes  -         -      -      -      -      a manager of p/x
drop-reservation            yes   -    -     -    -         -      -      -      -      an admin
drain n1                    yes   -    -     -    -         -      -      -      -      an admin
resume n2                   yes   -    -     -    -         -      -      -      -      an admin
lost n3                     yes   -    -     -    -         -      -      -      -      an admin
remove n3                   yes   -    -     -    -         -      -      -      -      an admin
";

/// Where nobody is named on the path, all may do what members may, and no more.
const OPEN: &str = "
                            admin root above here elsewhere member reader nobody owner
submit open                 yes   yes  yes   yes  yes       yes    yes    yes    yes    -
ask open                    yes   yes  yes   yes  yes       yes    yes    yes    yes    -
set open                    yes   -    -     -    -         -      -      -      -      a manager of root
role open                   yes   -    -     -    -         -      -      -      -      a manager of open
cancel                      yes   -    yes   yes  -         -      -      -      yes    its owner
";

fn user(who: &str) -> UserId {
    UserId(WHO.iter().find(|(name, _)| *name == who).unwrap().1)
}

/// The jobs of `owner`: a parked one, and one that is not.
#[derive(Clone, Copy)]
struct Jobs {
    parked: JobId,
    live: JobId,
}

/// The tree, the people, the jobs, a drained node and a silent one.
fn prepared(root_is_managed: bool) -> (Lab, Jobs) {
    let mut lab = Lab::with_nodes(&[8, 8, 8]);
    lab.change_policy(|policy| {
        policy.admins.insert(user("admin"));
        policy.silent_after = Span::hours(1);
    });
    lab.set("default", 0);
    for (path, percent) in [("p", 50), ("p/x", 40), ("p/w", 20), ("q", 20), ("open", 10)] {
        lab.set(path, percent);
    }
    role(&mut lab, Some("p"), "above", Some(Role::Manager));
    role(&mut lab, Some("p/x"), "here", Some(Role::Manager));
    role(&mut lab, Some("p/w"), "here", Some(Role::Manager));
    role(&mut lab, Some("q"), "elsewhere", Some(Role::Manager));
    role(&mut lab, Some("p/x"), "member", Some(Role::Member));
    role(&mut lab, Some("p/x"), "reader", Some(Role::Reader));
    role(&mut lab, Some("p/x"), "owner", Some(Role::Member));
    let parked = lab.submit_as(user("owner"), spec(&lab, "p/x")).unwrap();
    let request = JobRequest::Park;
    lab.apply(&Event::JobRequested { job: parked, by: user("owner"), request });
    let live = lab.submit_as(user("owner"), spec(&lab, "p/x")).unwrap();
    role(&mut lab, Some("p/x"), "owner", None);
    if root_is_managed {
        role(&mut lab, None, "root", Some(Role::Manager));
    }
    let (account, size) = ("p/x".parse().unwrap(), Size::Share(1));
    let request = AccountRequest::Ask { account, size, reason: "an earlier one".to_owned() };
    lab.apply(&Event::AccountRequested { by: user("member"), request });
    lab.drain(2);
    lab.pass_with(Span::hours(2), &[1, 2]);
    (lab, Jobs { parked, live })
}

fn role(lab: &mut Lab, path: Option<&str>, who: &str, role: Option<Role>) {
    let (account, user) = (path.map(|path| path.parse().unwrap()), user(who));
    let request = AccountRequest::SetRole { account, user, role };
    lab.apply(&Event::AccountRequested { by: UserId(0), request });
}

fn spec(lab: &Lab, account: &str) -> JobSpec {
    JobSpec { account: account.parse().unwrap(), ..lab.spec(1) }
}

/// What a row's words ask of accounts, if they do.
fn request_of(words: &str) -> Option<AccountRequest> {
    let words: Vec<_> = words.split(' ').collect();
    let account = words.get(1).and_then(|path| path.parse().ok());
    let (size, cut) = (Size::Share(10_000), Cut::Now);
    Some(match words[0] {
        "make" | "set" => AccountRequest::Set { account: account?, size, cut },
        "delete" => AccountRequest::Delete { account: account? },
        "answer" => AccountRequest::Answer {
            account: account?,
            asked_by: user("member"),
            grant: words.len() < 3,
            size: None,
        },
        "transfer" => AccountRequest::Transfer {
            from: account?,
            to: words[2].parse().unwrap(),
            amount: Amount::gpu_hours(1),
            permanent: false,
            key: None,
        },
        "ask" => AccountRequest::Ask { account: account?, size, reason: "more".to_owned() },
        "role" => AccountRequest::SetRole {
            account: account.filter(|_| words[1] != "root"),
            user: UserId(77),
            role: Some(Role::Reader),
        },
        _ => return None,
    })
}

fn event_of(lab: &Lab, words: &str, jobs: Jobs, by: UserId) -> Event {
    if let Some(request) = request_of(words) {
        return Event::AccountRequested { by, request };
    }
    let (verb, what) = words.split_once(' ').unwrap_or((words, ""));
    let node = || what.parse().unwrap();
    let job = jobs.live;
    let about = |job, request| Event::JobRequested { job, by, request };
    match verb {
        "submit" => {
            let (key, spec) = (SubmitKey(5), Box::new(spec(lab, what)));
            Event::JobSubmitted { key, user: by, spec }
        }
        "cancel" => Event::CancelRequested { job, by },
        "park" => about(job, JobRequest::Park),
        "release" => about(jobs.parked, JobRequest::Release),
        "allow-elder" => about(job, JobRequest::AllowElder),
        "drop-reservation" => about(job, JobRequest::DropReservation),
        "drain" => {
            let (node, reason) = (node(), "why".to_owned());
            Event::DrainRequested { node, by, reason, wanted_by: None }
        }
        "resume" => Event::ResumeRequested { node: node(), by },
        "lost" => Event::NodeDeclaredLost { node: node(), by },
        "remove" => Event::NodeRemovalRequested { node: node(), by },
        _ => panic!("{words} is no request"),
    }
}

/// What comes of a request on a copy of the lab's core: the refusal, and whether the books changed.
fn outcome(lab: &Lab, event: &Event) -> (Option<String>, bool) {
    let (mut core, before): (_, Books) = (lab.core.clone(), lab.core.books().clone());
    let stamp = Stamp { at: lab.now(), seq: DecisionSeq(1_000_000) };
    let decisions = core.apply(stamp, event).unwrap();
    let refused = |one: &Decision| {
        if let Decision::Refused(refusal) = one { Some(refusal.to_string()) } else { None }
    };
    let refusal = decisions.iter().find_map(refused);
    (refusal, *core.books() != before)
}

/// Says all cells that are otherwise.
fn check(table: &str, (lab, jobs): &(Lab, Jobs)) {
    let mut rows = table.lines().filter(|line| !line.is_empty());
    let columns: Vec<_> = rows.next().unwrap().split_whitespace().collect();
    let mut wrong = Vec::new();
    for row in rows {
        let (words, cells) = (row[..28].trim(), row[28..].split_whitespace());
        let cells: Vec<_> = cells.take(columns.len()).collect();
        let needed = row.rsplit_once("   ").unwrap().1.trim();
        for (who, cell) in columns.iter().zip(cells) {
            let (refusal, changed) = outcome(lab, &event_of(lab, words, *jobs, user(who)));
            let as_it_must = match (cell, &refusal) {
                ("yes", None) => changed || ["drop-reservation", "lost n3"].contains(&words),
                ("-", Some(why)) => why.contains(needed) && !changed,
                _ => false,
            };
            if !as_it_must {
                wrong.push(format!("{who}: {words}: {refusal:?}, changed: {changed}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_request_is_taken_from_whom_its_role_allows_and_refused_from_all_others() {
    check(TABLE, &prepared(true));
}

#[test]
fn where_nobody_is_named_all_may_submit_and_ask_and_only_managers_above_may_more() {
    check(OPEN, &prepared(false));
}

#[test]
fn a_deleted_account_takes_its_people_and_their_requests_along() {
    let (mut lab, _) = prepared(false);
    let there = |lab: &Lab| lab.core.books().accounts.find(&"p/w".parse().unwrap()).cloned();
    let asked = |lab: &Lab| lab.core.books().asked.len();
    let (account, size) = ("p/w".parse().unwrap(), Size::Share(1));
    let ask = AccountRequest::Ask { account, size, reason: "why".to_owned() };
    lab.apply(&Event::AccountRequested { by: user("here"), request: ask });
    assert_eq!((there(&lab).unwrap().roles.len(), asked(&lab)), (1, 2));
    let delete = AccountRequest::Delete { account: "p/w".parse().unwrap() };
    lab.apply(&Event::AccountRequested { by: UserId(0), request: delete });
    assert_eq!((there(&lab), asked(&lab)), (None, 1));
    lab.set("p/w", 20);
    assert_eq!(there(&lab).unwrap().roles.len(), 0);
}
