//! How a job saves when it is asked to: the `[checkpoint]` table, and `--checkpoint` of
//! `tidegate run`. A preset says what a framework listens for; explicit keys override it.

use tidegate_model::{
    AsksWithin, Bytes, CheckpointOffer, SaveSignal, SaveTarget, Span, StorageName,
};
use toml::{Table, Value};

use super::keys::{Keys, parsed, wrong_type};
use super::{JobFileError, Key};

/// From the signal to the end, unless it is given.
const DEFAULT_GRACE: Span = Span::minutes(10);

const DEFAULT_STORAGE: &str = "shared";

/// The exit code by which programs say that they saved (85 by the convention of `HTCondor`).
const SAVED: u8 = 85;

pub(super) const KEYS: [Key; 8] = [
    (
        "preset",
        "\"lightning\", \"hf\", \"megatron\", \"nemo\", \"jax\", \"submitit\", \"plain\" or \"none\"",
        "\"none\": by file and socket",
    ),
    ("signal", "\"TERM\", \"USR1\", \"USR2\", \"HUP\" or \"INT\"", "the preset's"),
    ("target", "\"ranks\", \"rank0\" or \"task\"", "the preset's, else \"ranks\""),
    ("grace", "a span of time such as \"10m\", at most \"30m\"", "\"10m\""),
    ("bytes", "a size such as \"512GiB\" of one checkpoint", "not declared"),
    (
        "asks_within",
        "a span of time such as \"20s\", above 0 and at most the grace",
        "not declared: it is told when it may write",
    ),
    ("storage", "a string with the name of a storage target", "\"shared\""),
    ("saved_codes", "an array of exit codes from 0 to 255", "[85]"),
];

/// The keys by their whole names: by these they are told.
const PRESET: &str = "checkpoint.preset";
const SIGNAL: &str = "checkpoint.signal";
const TARGET: &str = "checkpoint.target";
const ASKS_WITHIN: &str = "checkpoint.asks_within";

/// What a framework listens for.
struct Preset {
    name: &'static str,
    signal: Option<SaveSignal>,
    target: SaveTarget,
    saved_codes: &'static [u8],
}

/// Lightning reads TERM as "do not requeue", so it is asked by USR1; submitit uses USR2 because NCCL
/// takes USR1, and leaves with -1. The others save at TERM, and leave with 0.
const PRESETS: [Preset; 8] = [
    preset("lightning", Some(SaveSignal::Usr1), SaveTarget::Ranks, &[SAVED]),
    preset("hf", Some(SaveSignal::Term), SaveTarget::Ranks, &[SAVED]),
    preset("megatron", Some(SaveSignal::Term), SaveTarget::Ranks, &[SAVED]),
    preset("nemo", Some(SaveSignal::Term), SaveTarget::Ranks, &[SAVED]),
    preset("jax", Some(SaveSignal::Term), SaveTarget::Ranks, &[SAVED]),
    preset("submitit", Some(SaveSignal::Usr2), SaveTarget::Ranks, &[SAVED, 255]),
    preset("plain", Some(SaveSignal::Term), SaveTarget::Task, &[SAVED]),
    preset(NONE, None, SaveTarget::Ranks, &[SAVED]),
];

/// By the file and the socket only.
const NONE: &str = "none";

const fn preset(
    name: &'static str,
    signal: Option<SaveSignal>,
    target: SaveTarget,
    saved_codes: &'static [u8],
) -> Preset {
    Preset { name, signal, target, saved_codes }
}

/// Reads the table.
///
/// # Errors
/// The first key that is refused, in the order of the alphabet if it is unknown.
pub(super) fn offer(table: &Table) -> Result<CheckpointOffer, JobFileError> {
    let known = KEYS.map(|(key, ..)| key);
    if let Some(given) = table.keys().find(|given| !known.contains(&given.as_str())) {
        return Err(JobFileError::UnknownKey { given: given.clone(), known: known.into() });
    }
    let keys = Keys(table);
    let name = keys.text(PRESET)?.unwrap_or(NONE);
    let preset = PRESETS.iter().find(|preset| preset.name == name);
    let preset = preset.ok_or_else(|| refused(table, PRESET))?;
    let grace = keys.measured("checkpoint.grace")?.unwrap_or(DEFAULT_GRACE);
    let within = |span: Span| AsksWithin::of(span).filter(|_| span <= grace);
    let asks_within = keys.measured::<Span>(ASKS_WITHIN)?;
    let asks_within =
        asks_within.map(|span| within(span).ok_or_else(|| refused(table, ASKS_WITHIN)));
    let storage = keys.text("checkpoint.storage")?.unwrap_or(DEFAULT_STORAGE);
    let storage: StorageName = parsed("checkpoint.storage", storage)?;
    Ok(CheckpointOffer {
        // The command line makes rehearsals of it.
        rehearsal: None,
        signal: signal(&keys, table)?.or(preset.signal),
        target: target(&keys, table)?.unwrap_or(preset.target),
        grace,
        bytes: keys.parsed::<Bytes>("checkpoint.bytes")?,
        asks_within: asks_within.transpose()?,
        storage,
        saved_codes: keys
            .codes("checkpoint.saved_codes")?
            .unwrap_or_else(|| preset.saved_codes.to_vec()),
    })
}

/// Reads the words of `--checkpoint`: presets, and keys with values as in the table.
///
/// # Errors
/// As [`offer`].
pub(crate) fn of_words(words: &[String]) -> Result<Option<CheckpointOffer>, JobFileError> {
    if words.is_empty() {
        return Ok(None);
    }
    let mut table = Table::new();
    for word in words {
        let (key, text) = word.split_once('=').unwrap_or(("preset", word));
        let value = match key {
            "saved_codes" => Value::Array(text.split(',').map(code).collect()),
            _ => Value::String(text.to_owned()),
        };
        table.insert(key.to_owned(), value);
    }
    offer(&table).map(Some)
}

/// What is no number stays a text, and is refused as one.
fn code(text: &str) -> Value {
    text.parse().map_or_else(|_| Value::String(text.to_owned()), Value::Integer)
}

fn signal(keys: &Keys<'_>, table: &Table) -> Result<Option<SaveSignal>, JobFileError> {
    let Some(name) = keys.text(SIGNAL)? else { return Ok(None) };
    name.parse().map(Some).map_err(|_words| refused(table, SIGNAL))
}

fn target(keys: &Keys<'_>, table: &Table) -> Result<Option<SaveTarget>, JobFileError> {
    match keys.text(TARGET)? {
        None => Ok(None),
        Some("ranks") => Ok(Some(SaveTarget::Ranks)),
        Some("rank0") => Ok(Some(SaveTarget::Rank0)),
        Some("task") => Ok(Some(SaveTarget::Task)),
        Some(_) => Err(refused(table, TARGET)),
    }
}

/// The value of a key is not one of those that are accepted.
fn refused(table: &Table, key: &'static str) -> JobFileError {
    let value = key.rsplit('.').next().and_then(|name| table.get(name));
    wrong_type(key, value.unwrap_or(&Value::Boolean(false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let told = offer(&text.parse().unwrap()).map(|offer| {
            let signal = offer.signal.map_or_else(|| "-".to_owned(), |signal| signal.to_string());
            let codes = offer.saved_codes.iter().map(ToString::to_string).collect::<Vec<_>>();
            format!(
                "{signal} {:?} {} {} {}",
                offer.target,
                offer.grace,
                offer.storage,
                codes.join(",")
            )
        });
        let told = told.unwrap_or_else(|error| error.to_string());
        assert_eq!(told, expected, "{text}");
        assert_eq!(told.lines().count(), 1, "one line: {told}");
    }

    #[test]
    fn each_preset_asks_whom_its_framework_needs_asked() {
        check("", "- Ranks 10m shared 85");
        check("preset = \"none\"", "- Ranks 10m shared 85");
        check("preset = \"lightning\"", "USR1 Ranks 10m shared 85");
        for name in ["hf", "megatron", "nemo", "jax"] {
            check(&format!("preset = {name:?}"), "TERM Ranks 10m shared 85");
        }
        check("preset = \"submitit\"", "USR2 Ranks 10m shared 85,255");
        check("preset = \"plain\"", "TERM Task 10m shared 85");
    }

    #[test]
    fn explicit_keys_override_the_preset() {
        check(
            "preset = \"plain\"\nsignal = \"SIGUSR1\"\ntarget = \"rank0\"\ngrace = \"5m\"\n\
             storage = \"scratch\"\nsaved_codes = [0, 75]",
            "USR1 Rank0 5m scratch 0,75",
        );
        check("signal = \"HUP\"", "HUP Ranks 10m shared 85");
    }

    #[test]
    fn what_is_refused_names_its_key_and_what_is_accepted() {
        check(
            "signal = \"KILL\"",
            "checkpoint.signal: the string \"KILL\" was given; \"TERM\", \"USR1\", \"USR2\", \"HUP\" or \
             \"INT\" is accepted",
        );
        check(
            "target = \"all\"",
            "checkpoint.target: the string \"all\" was given; \"ranks\", \"rank0\" or \"task\" is \
             accepted",
        );
        check(
            "preset = \"keras\"",
            "checkpoint.preset: the string \"keras\" was given; \"lightning\", \"hf\", \"megatron\", \
             \"nemo\", \"jax\", \"submitit\", \"plain\" or \"none\" is accepted",
        );
        check(
            "saved_codes = [0, 256]",
            "checkpoint.saved_codes[1]: the number 256 was given; an exit code from 0 to 255 is \
             accepted",
        );
        check(
            "grace = 600",
            "checkpoint.grace: the number 600 was given; a span of time such as \"10m\", at most \
             \"30m\" is accepted",
        );
        check(
            "asks_within = \"11m\"",
            "checkpoint.asks_within: the string \"11m\" was given; a span of time such as \"20s\", \
             above 0 and at most the grace is accepted",
        );
        check(
            "byte = \"1GiB\"",
            "unknown key \"byte\" (did you mean \"bytes\"?); the keys are preset, signal, target, \
             grace, bytes, asks_within, storage, saved_codes",
        );
    }

    #[test]
    fn words_of_the_command_line_are_read_as_the_table() {
        let words = |words: &[&str]| {
            of_words(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(words(&[]), Ok(None));
        let told = words(&["jax", "grace=5m", "saved_codes=0,85", "bytes=1TiB"]).unwrap();
        let table = "preset = \"jax\"\ngrace = \"5m\"\nsaved_codes = [0, 85]\nbytes = \"1TiB\"";
        assert_eq!(told, Some(offer(&table.parse().unwrap()).unwrap()));
        let refused = words(&["lightening"]).unwrap_err().to_string();
        assert!(refused.starts_with("checkpoint.preset: the string \"lightening\""), "{refused}");
    }
}
