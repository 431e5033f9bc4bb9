//! Values of a job file, each with its type.

use std::str::FromStr;

use tidegate_model::{Dependency, TaskLayout, WhileWaiting};
use toml::{Table, Value};

use super::JobFileError;

pub(super) fn syntax(text: &str, error: &toml::de::Error) -> JobFileError {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    // In the parser's words it is one of its own types that is too small.
    let out_of_range =
        message.contains("too large") || message.starts_with("invalid type: integer");
    let message = if out_of_range {
        format!("a number out of range was given; {} to {} are accepted", i64::MIN, i64::MAX)
    } else {
        message
    };
    JobFileError::Syntax { line: before.matches('\n').count() + 1, message }
}

pub(super) fn wrong_type(key: &str, value: &Value) -> JobFileError {
    const MOST_SHOWN: usize = 32;
    let short: String = value.to_string().chars().take(MOST_SHOWN).collect();
    let found = match value {
        Value::String(_) => format!("the string {short}"),
        Value::Integer(_) | Value::Float(_) => format!("the number {short}"),
        Value::Boolean(_) => short,
        Value::Datetime(_) => "a date".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    };
    JobFileError::WrongType { key: key.to_owned(), found }
}

pub(super) fn parsed<T: FromStr<Err: ToString>>(
    key: &'static str,
    text: &str,
) -> Result<T, JobFileError> {
    let told = |error: T::Err| JobFileError::Unparsable { key, why: error.to_string() };
    text.parse().map_err(told)
}

/// A table of a job file whose keys are all known. A key within a table is asked for by its whole
/// name, such as `checkpoint.grace`, and told by it.
pub(super) struct Keys<'a>(pub(super) &'a Table);

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key.rsplit('.').next().unwrap_or(key))
    }

    pub(super) fn text(&self, key: &'static str) -> Result<Option<&'a str>, JobFileError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| wrong_type(key, value)),
        }
    }

    pub(super) fn parsed<T: FromStr<Err: ToString>>(
        &self,
        key: &'static str,
    ) -> Result<Option<T>, JobFileError> {
        self.text(key)?.map(|text| parsed(key, text)).transpose()
    }

    /// A span or a size: what is none is refused with the range.
    pub(super) fn measured<T: FromStr>(
        &self,
        key: &'static str,
    ) -> Result<Option<T>, JobFileError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let measured = value.as_str().and_then(|text| text.parse().ok());
        measured.map(Some).ok_or_else(|| wrong_type(key, value))
    }

    pub(super) fn number(&self, key: &'static str) -> Result<Option<u32>, JobFileError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
        number.map(Some).ok_or_else(|| wrong_type(key, value))
    }

    pub(super) fn signed(&self, key: &'static str) -> Result<Option<i32>, JobFileError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_integer().and_then(|number| i32::try_from(number).ok());
        number.map(Some).ok_or_else(|| wrong_type(key, value))
    }

    pub(super) fn flag(&self, key: &'static str) -> Result<Option<bool>, JobFileError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong_type(key, value))
    }

    pub(super) fn table(&self, key: &'static str) -> Result<Option<&'a Table>, JobFileError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_table().map(Some).ok_or_else(|| wrong_type(key, value))
    }

    /// Exit codes.
    pub(super) fn codes(&self, key: &'static str) -> Result<Option<Vec<u8>>, JobFileError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let codes = value.as_array().ok_or_else(|| wrong_type(key, value))?;
        let code = |(at, value): (usize, &Value)| {
            let code = value.as_integer().and_then(|code| u8::try_from(code).ok());
            code.ok_or_else(|| wrong_type(&format!("{key}[{at}]"), value))
        };
        codes.iter().enumerate().map(code).collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn while_waiting(&self) -> Result<Option<WhileWaiting>, JobFileError> {
        match self.0.get("while_waiting").map(|value| (value, value.as_str())) {
            None => Ok(None),
            Some((_, Some("free"))) => Ok(Some(WhileWaiting::Free)),
            Some((_, Some("wait"))) => Ok(Some(WhileWaiting::Wait)),
            Some((value, _)) => Err(wrong_type("while_waiting", value)),
        }
    }

    pub(super) fn after(&self) -> Result<Vec<Dependency>, JobFileError> {
        let jobs = match self.0.get("after") {
            None => return Ok(Vec::new()),
            Some(Value::Array(jobs)) => jobs,
            Some(value) => return Err(wrong_type("after", value)),
        };
        let one = |(at, value): (usize, &Value)| {
            let text = value.as_str().ok_or_else(|| wrong_type(&format!("after[{at}]"), value))?;
            let (job, success) = match text.split_once(':') {
                None => (text, false),
                Some((job, "success")) => (job, true),
                Some(_) => return Err(wrong_type(&format!("after[{at}]"), value)),
            };
            Ok(Dependency { job: parsed("after", job)?, success })
        };
        jobs.iter().enumerate().map(one).collect()
    }

    pub(super) fn layout(&self) -> Result<TaskLayout, JobFileError> {
        match self.0.get("tasks").map(|value| (value, value.as_str())) {
            None | Some((_, Some("per-node"))) => Ok(TaskLayout::PerNode),
            Some((_, Some("per-gpu"))) => Ok(TaskLayout::PerGpu),
            Some((value, _)) => Err(wrong_type("tasks", value)),
        }
    }

    pub(super) fn command(&self) -> Result<Vec<String>, JobFileError> {
        let words = match self.0.get("command") {
            None => return Err(JobFileError::NoCommand),
            Some(Value::String(_)) => return Err(JobFileError::ShellString),
            Some(Value::Array(words)) => words,
            Some(value) => return Err(wrong_type("command", value)),
        };
        let word = |(at, value): (usize, &Value)| {
            let word = value.as_str().map(str::to_owned);
            word.ok_or_else(|| wrong_type(&format!("command[{at}]"), value))
        };
        words.iter().enumerate().map(word).collect()
    }

    /// Sorted by name, as a spec wants it: a [`Table`] is.
    pub(super) fn env(&self) -> Result<Vec<(String, String)>, JobFileError> {
        let vars = match self.0.get("env") {
            None => return Ok(Vec::new()),
            Some(Value::Table(vars)) => vars,
            Some(value) => return Err(wrong_type("env", value)),
        };
        let mut env = Vec::new();
        for (name, value) in vars {
            let text = value.as_str().ok_or_else(|| wrong_type(&format!("env.{name}"), value))?;
            env.push((name.clone(), text.to_owned()));
        }
        env.sort();
        Ok(env)
    }
}
