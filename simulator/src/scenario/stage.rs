//! Plays a scenario on a world.

use tidegate_model::{AccountPath, Dependency, JobId, NodeName, Timestamp, UserId};

use scheduler_core::{
    Account, AccountRequest, Cut, Decision, Event, Explanation, JobRequest, Refusal, Size,
};

use super::gates;
use super::script::{JobForm, JobVerb, NodeVerb, Script, Step};
use super::values::{self, amount_text, instant_text};
use super::words::{Words, node_name};
use crate::world::{EPOCH, World, Wrong};

/// The account that a store without a tree begins with.
const FIRST_ACCOUNT: &str = "default";

/// All that came of it, as text. What must never be is its last line.
pub(super) fn play(script: &Script) -> String {
    match World::new(&script.nodes, script.policy.clone(), Words::default(), true) {
        Ok(world) => {
            let mut stage = Stage { world };
            if let Err(wrong) = stage.play(script) {
                let now = stage.world.now();
                stage.world.observer.say(now, format!("WRONG: {wrong}"));
            }
            stage.world.observer.text()
        }
        Err(wrong) => format!("{} WRONG: {wrong}\n", instant_text(EPOCH)),
    }
}

struct Stage {
    world: World<Words>,
}

impl Stage {
    fn play(&mut self, script: &Script) -> Result<(), Wrong> {
        self.divide(&script.accounts)?;
        for (at, step) in &script.steps {
            self.world.run_until(*at)?;
            self.perform(step)?;
        }
        let last = script.steps.last().map(|(at, _)| *at);
        self.world.run_until(script.until.or(last).unwrap_or(EPOCH))
    }

    /// The accounts of the beginning, in place of the one that has everything.
    fn divide(&mut self, accounts: &[(AccountRequest, UserId)]) -> Result<(), Wrong> {
        let Ok(first) = FIRST_ACCOUNT.parse::<AccountPath>() else { return Ok(()) };
        let divided = accounts.iter().any(|(one, _)| matches!(one, AccountRequest::Set { .. }));
        if divided {
            let (account, size, cut) = (first.clone(), Size::Share(0), Cut::Now);
            self.account(&AccountRequest::Set { account, size, cut }, UserId(0))?;
        }
        for (request, by) in accounts {
            self.account(request, *by)?;
        }
        if divided {
            self.account(&AccountRequest::Delete { account: first }, UserId(0))?;
        }
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Result<(), Wrong> {
        match step {
            Step::Submit(names, form) => names.iter().try_for_each(|name| self.submit(name, form)),
            Step::Job(verb, names, by) => {
                names.iter().try_for_each(|name| match self.world.observer.job(name) {
                    Some(job) => self.job(*verb, name, job, *by),
                    None => self.say(format!("no job is called {name}")),
                })
            }
            Step::Node(verb, nodes, by) => {
                nodes.iter().try_for_each(|node| self.node(*verb, node, *by))
            }
            Step::Drain { node, why, wanted_by, by } => {
                let (node, reason) = (node.clone(), why.clone());
                let (by, wanted_by) = (*by, *wanted_by);
                let event = Event::DrainRequested { node: node.clone(), by, reason, wanted_by };
                self.ask(&event, &format!("drain {node}"))
            }
            Step::Close { node, why } => self.world.close(node, why),
            Step::Account(request, by) => self.account(request, *by),
            Step::Gate(storage, request, by) => {
                let (storage, by, request) = (storage.clone(), *by, request.clone());
                let what = format!("gate {storage}");
                self.ask(&Event::GateRequested { storage, by, request }, &what)
            }
            Step::Server(carries) => {
                self.world.carry(*carries);
                Ok(())
            }
            Step::Policy(key, value) => {
                let mut policy = self.world.core().books().policy.clone();
                match values::set_policy(&mut policy, key, value) {
                    Ok(()) => self.ask(&Event::PolicyChanged(policy.into()), "policy"),
                    Err(why) => self.say(why),
                }
            }
            Step::Down => {
                self.world.take_down();
                Ok(())
            }
            Step::Restart => self.world.restart(),
            Step::Show(names) => names.iter().try_for_each(|name| self.show(name)),
        }
    }

    fn say(&mut self, text: String) -> Result<(), Wrong> {
        let now = self.world.now();
        self.world.observer.say(now, text);
        Ok(())
    }

    fn ask(&mut self, event: &Event, what: &str) -> Result<(), Wrong> {
        let decisions = self.world.tell(event)?;
        self.refusals(&decisions, what)
    }

    fn refusals(&mut self, decisions: &[Decision], what: &str) -> Result<(), Wrong> {
        for decision in decisions {
            if let Decision::Refused(refusal) = decision {
                self.refused(what, refusal)?;
            }
        }
        Ok(())
    }

    fn refused(&mut self, what: &str, refusal: &Refusal) -> Result<(), Wrong> {
        self.say(format!("{what} is refused: {refusal}"))
    }

    fn account(&mut self, request: &AccountRequest, by: UserId) -> Result<(), Wrong> {
        let what = match request {
            AccountRequest::Set { account, .. } => format!("set {account}"),
            AccountRequest::Transfer { from, to, .. } => format!("transfer {from} {to}"),
            AccountRequest::Ask { account, .. } => format!("ask {account}"),
            AccountRequest::Answer { account, .. } => format!("answer {account}"),
            AccountRequest::Delete { account } => format!("delete {account}"),
            AccountRequest::SetRole { user, .. } => format!("role of {user}"),
        };
        self.ask(&Event::AccountRequested { by, request: request.clone() }, &what)
    }

    fn submit(&mut self, name: &str, form: &JobForm) -> Result<(), Wrong> {
        let mut spec = form.spec.clone();
        for (after, success) in &form.after {
            match self.world.observer.job(after) {
                Some(job) => spec.after.push(Dependency { job, success: *success }),
                None => return self.say(format!("no job is called {after}")),
            }
        }
        self.world.observer.next_name = Some(name.to_owned());
        let decisions = self.world.submit(form.user, spec, form.work.clone())?;
        self.world.observer.next_name = None;
        self.refusals(&decisions, name)
    }

    fn job(&mut self, verb: JobVerb, name: &str, job: JobId, by: UserId) -> Result<(), Wrong> {
        let request = |request| Event::JobRequested { job, by, request };
        match verb {
            JobVerb::Cancel => {
                self.ask(&Event::CancelRequested { job, by }, &format!("cancel {name}"))
            }
            JobVerb::Park => self.ask(&request(JobRequest::Park), &format!("park {name}")),
            JobVerb::Release => self.ask(&request(JobRequest::Release), &format!("release {name}")),
            JobVerb::Elder => self.ask(&request(JobRequest::AllowElder), &format!("elder {name}")),
            JobVerb::Drop => {
                self.ask(&request(JobRequest::DropReservation), &format!("drop {name}"))
            }
            JobVerb::Fail => self.world.fail(job),
            JobVerb::Commit => self.world.commit(job),
            JobVerb::Idle | JobVerb::Busy => {
                self.world.idle(job, verb == JobVerb::Idle);
                Ok(())
            }
        }
    }

    fn node(&mut self, verb: NodeVerb, name: &NodeName, by: UserId) -> Result<(), Wrong> {
        let node = name.clone();
        match verb {
            NodeVerb::Resume => {
                self.ask(&Event::ResumeRequested { node, by }, &format!("resume {name}"))
            }
            NodeVerb::Lose => {
                self.ask(&Event::NodeDeclaredLost { node, by }, &format!("lose {name}"))
            }
            NodeVerb::Remove => {
                self.ask(&Event::NodeRemovalRequested { node, by }, &format!("remove {name}"))
            }
            NodeVerb::Silent => {
                self.world.silence(name);
                Ok(())
            }
            NodeVerb::Back => self.world.hear_again(name),
            NodeVerb::Reboot => self.world.reboot(name),
        }
    }
}

/// What is shown only when it is asked for.
impl Stage {
    fn show(&mut self, name: &str) -> Result<(), Wrong> {
        if let Some(job) = self.world.observer.job(name) {
            let text = self.world.core().explain(self.world.now(), job).map(|why| explained(&why));
            return self.say(format!("{name}: {}", text.unwrap_or_else(|| "forgotten".to_owned())));
        }
        if name == "gates" {
            let texts = gates::texts(self.world.core(), self.world.now(), &self.world.observer);
            return texts.into_iter().try_for_each(|text| self.say(text));
        }
        let texts = self.account_texts(name);
        if !texts.is_empty() {
            return texts.into_iter().try_for_each(|text| self.say(text));
        }
        let text = name.parse().ok().and_then(|node| self.node_text(&node));
        self.say(text.unwrap_or_else(|| format!("nothing is called {name}")))
    }

    /// `accounts` are all of them.
    fn account_texts(&self, name: &str) -> Vec<String> {
        let books = self.world.core().books();
        let accounts = &books.accounts;
        if name == "accounts" {
            return accounts.live().map(|account| self.account_text(account)).collect();
        }
        if let Some(leaf) = name.strip_suffix("/users") {
            let found = leaf.parse().ok().and_then(|path| accounts.find(&path));
            return found.map(|account| self.user_texts(account)).unwrap_or_default();
        }
        let found = name.parse().ok().and_then(|path| accounts.find(&path));
        found.into_iter().map(|account| self.account_text(account)).collect()
    }

    fn account_text(&self, account: &Account) -> String {
        let (books, now) = (self.world.core().books(), self.world.now());
        let sheet = books.accounts.sheet(now, books.policy.sharing.small_reserve);
        let row = sheet.row(account.id);
        let scaled = if row.scaled { ", its children scaled" } else { "" };
        format!(
            "{}: charged {}, pledged {}, limit {}, budget {}, free {}{scaled}",
            books.accounts.name(account.id),
            amount_text(account.charged.value(now)),
            amount_text(account.pledge.value(now)),
            amount_text(row.limit),
            amount_text(row.budget),
            amount_text(account.free.value(now))
        )
    }

    fn user_texts(&self, account: &Account) -> Vec<String> {
        let (books, now) = (self.world.core().books(), self.world.now());
        let name = books.accounts.name(account.id);
        let users = account.purses.iter().map(|(user, purse)| {
            format!(
                "{name} {user}: claim {}, small use {}",
                amount_text(purse.claim(now)),
                amount_text(purse.small_use(now))
            )
        });
        users.collect()
    }

    fn node_text(&self, name: &NodeName) -> Option<String> {
        let (core, now) = (self.world.core(), self.world.now());
        let node = core.books().node_named(name)?;
        let state = core.node_state(now, node.id)?;
        let times = node.drain.as_ref().and_then(|_| core.drain_times(now, node.id));
        let times = times.map(|times| {
            let (from, by) = (instant_text(times.saves_from), instant_text(times.empty_by));
            format!(", saves from {from}, empty by {by}")
        });
        let closed = node.closed().map(|why| format!(", takes no new work: {why}"));
        let name = node_name(core.books(), node.id);
        let (times, closed) = (times.unwrap_or_default(), closed.unwrap_or_default());
        Some(format!("{name}: {state:?}{times}{closed}"))
    }
}

/// The reason's noun and its numbers.
fn explained(why: &Explanation) -> String {
    let mut text = format!("{:?}", why.reason);
    for (key, number) in &why.numbers {
        let (key, value) = if let Some(key) = key.strip_suffix("_gpu_ms") {
            let amount = scheduler_core::Amount(i128::from(*number).saturating_mul(1000));
            (key, amount_text(amount))
        } else if let Some(key) = key.strip_suffix("_ms") {
            (key, instant_text(Timestamp(*number)))
        } else {
            (*key, number.to_string())
        };
        text.push_str(&format!(" {key}={value}"));
    }
    text
}
