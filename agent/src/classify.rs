//! A kernel log judged offline: `tidegate-agent classify`. What the agent would say of each line, and of what
//! belongs together, with the row of the table that says so.
//!
//! It knows nothing of jobs, of what we ended ourselves, of what GPUs ask for but as the log says it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};
use tidegate_health::{
    Class, Context, Found, Incident, Scope, Table, Target, Verdict, judge, remembered, signal, when,
};
use tidegate_model::Timestamp;

/// More of a line is not looked at: the kernel's own are shorter.
const MAX_LINE: u64 = 64 << 10;

/// Judges a kernel log, as /dev/kmsg, dmesg or a journal has it: explains each line about GPUs, and says what
/// would follow.
///
/// Ends with 0 when the log was read, whatever is in it, 1 if it cannot be read, 2 if the policy is none.
#[derive(Debug, Args)]
pub struct Classify {
    /// The log; - reads standard input.
    file: PathBuf,
    /// The driver's version, such as 570.86.15: units of links are numbered otherwise before 575.
    #[arg(long, value_name = "VERSION", value_parser = major)]
    driver: Option<u32>,
    /// A site's own policy instead of the one that is shipped.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// One JSON object for each line and incident.
    #[arg(long)]
    json: bool,
}

fn major(text: &str) -> Result<u32, String> {
    let first = text.split('.').next().unwrap_or_default();
    first
        .parse()
        .map_err(|_not_one| format!("{text:?} is no driver version, such as 570 or 570.86.15"))
}

/// Does it.
#[must_use]
pub fn run(classify: &Classify) -> ExitCode {
    let table = match table(classify.policy.as_deref()) {
        Ok(table) => table.for_driver(classify.driver),
        Err(error) => return ended(&error, 2),
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    let read = input(&classify.file)
        .and_then(|input| Log::new(classify, &table, &mut out).read(input))
        .and_then(|()| out.flush().context("standard output cannot be written"));
    match read {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever has seen enough closes the pipe.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => ended(&error, 1),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let of_io = error.downcast_ref::<io::Error>();
    of_io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn ended(error: &anyhow::Error, code: u8) -> ExitCode {
    let _nobody_reads = writeln!(io::stderr(), "tidegate-agent: {error:#}");
    ExitCode::from(code)
}

fn table(file: Option<&Path>) -> anyhow::Result<Table> {
    let Some(file) = file else { return Ok(Table::shipped()?) };
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    Table::parse(&text).with_context(|| format!("{} is no policy", file.display()))
}

fn input(file: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(file).with_context(|| file.display().to_string())?;
    Ok(Box::new(BufReader::new(file)))
}

/// What is read so far.
struct Log<'run> {
    classify: &'run Classify,
    table: &'run Table,
    out: &'run mut dyn Write,
    open: Incident,
    context: Context,
    incidents: u64,
    /// Of the newest line that says one.
    now: Timestamp,
}

impl<'run> Log<'run> {
    fn new(classify: &'run Classify, table: &'run Table, out: &'run mut dyn Write) -> Self {
        let (open, context) = (Incident::default(), Context::default());
        Self { classify, table, out, open, context, incidents: 0, now: Timestamp(0) }
    }

    fn read(mut self, mut input: Box<dyn BufRead>) -> anyhow::Result<()> {
        let mut line = Vec::new();
        for number in 1_u64.. {
            line.clear();
            let read = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
            if read.context("the log cannot be read")? == 0 {
                break;
            }
            if !line.ends_with(b"\n") {
                input.skip_until(b'\n').context("the log cannot be read")?;
            }
            self.line(number, String::from_utf8_lossy(&line).trim_end())?;
        }
        self.close()
    }

    fn line(&mut self, number: u64, said: &str) -> anyhow::Result<()> {
        self.now = when(said).unwrap_or(self.now);
        let read = signal(said);
        if matches!(read, Ok(None)) {
            return Ok(());
        }
        if !self.open.goes_on_at(self.table, self.now) {
            self.close()?;
        }
        if let Ok(Some(signal)) = &read {
            self.open.note(self.table, self.now, signal, said);
            let found = self.table.find(signal);
            return self.tell_line(number, said, &signal.to_string(), found);
        }
        self.open.note_unreadable(self.table, self.now, said);
        self.tell_line(number, said, "a line in words that are not known", self.table.unreadable())
    }

    fn tell_line(
        &mut self,
        number: u64,
        said: &str,
        what: &str,
        found: Found<'_>,
    ) -> anyhow::Result<()> {
        let meaning = found.meaning;
        if self.classify.json {
            let value = json!({"line": number, "text": said, "signal": what, "class": meaning.class.name(),
                "scope": meaning.scope.map(Scope::name), "action": meaning.action.name(), "rule": found.name,
                "why": why(&found), "source": found.source});
            return Ok(writeln!(self.out, "{value}")?);
        }
        let scope = meaning.scope.map_or("-", Scope::name);
        let (class, action) = (meaning.class.name(), meaning.action.name());
        let why = why(&found).map(|why| format!("; {why}")).unwrap_or_default();
        writeln!(self.out, "line {number}: {what}: {class}, scope {scope}, action {action}")?;
        Ok(writeln!(self.out, "    {}{why} [{}]", found.name, found.source)?)
    }

    /// The incident is over.
    fn close(&mut self) -> anyhow::Result<()> {
        let incident = std::mem::take(&mut self.open);
        let Some((first, last)) = incident.times() else { return Ok(()) };
        self.incidents = self.incidents.saturating_add(1);
        let verdicts = judge(self.table, &incident, &self.context);
        let kept = |at: Timestamp| last.since(at) <= self.table.longest_memory();
        self.context.past.retain(|past| kept(past.at));
        self.context.past.extend(remembered(self.table, &incident, &self.context));
        let number = self.incidents;
        if self.classify.json {
            let verdicts: Vec<_> = verdicts.iter().map(verdict_json).collect();
            let value = json!({"incident": number, "first_ms": first.0, "last_ms": last.0,
                "lines": incident.lines(), "verdicts": verdicts});
            return Ok(writeln!(self.out, "{value}")?);
        }
        let lasted = last.since(first);
        let lines = counted(incident.lines(), "line");
        writeln!(self.out, "incident {number}: {lines} in {lasted}")?;
        for verdict in &verdicts {
            self.tell_verdict(verdict)?;
        }
        Ok(())
    }

    fn tell_verdict(&mut self, verdict: &Verdict) -> anyhow::Result<()> {
        let Verdict { class: bad, action: what, rule, source, count, .. } = verdict;
        let (target, class, action) = (target(verdict.target), bad.name(), what.name());
        let why = verdict.why.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
        writeln!(self.out, "    {target}: {class}, {}; action {action}", follows(*bad))?;
        writeln!(
            self.out,
            "        because: {rule}{why} [{source}], {}",
            counted(*count, "signal")
        )?;
        Ok(writeln!(self.out, "        first: {}", verdict.evidence)?)
    }
}

fn verdict_json(verdict: &Verdict) -> Value {
    json!({"target": target(verdict.target), "class": verdict.class.name(),
        "scope": match verdict.target { Target::Node => "node", Target::Device(_) => "gpu" },
        "follows": follows(verdict.class), "action": verdict.action.name(), "rule": verdict.rule,
        "why": verdict.why, "source": verdict.source, "signals": verdict.count,
        "evidence": verdict.evidence})
}

/// What a row says beside its class.
fn why(found: &Found<'_>) -> Option<String> {
    let mut all = Vec::new();
    if let Some(again) = found.again {
        let class = again.meaning().class.name();
        all.push(format!("{class} if it comes {} times in {}", again.times, again.within()));
    }
    if found.needs_company {
        all.push("only together with a GPU or a link that failed".to_owned());
    }
    if found.peer {
        all.push("the other end of the link is to blame".to_owned());
    }
    if let Some(own) = found.own {
        all.push(format!("harmless where {}", own.words()));
    }
    (!all.is_empty()).then(|| all.join(", "))
}

fn counted(count: u64, what: &str) -> String {
    let more = if count == 1 { "" } else { "s" };
    format!("{count} {what}{more}")
}

fn target(target: Target) -> String {
    match target {
        Target::Node => "the node".to_owned(),
        Target::Device(device) => device.to_string(),
    }
}

fn follows(class: Class) -> &'static str {
    match class {
        Class::Harmless => "nothing follows",
        Class::Application => "told to the job's owner, nothing drains",
        Class::Unknown => "told to on-call, nothing drains",
        Class::Degraded => "drains, at the end of protected time",
        Class::Fatal => "out at once",
    }
}
