//! How the command line ends: one table of exit codes, and the one mapping from gRPC's codes.

use std::fmt;
use std::io;
use std::process::ExitCode;

use tonic::{Code, Status};

use crate::show::text::plain;

/// Every way a command ends. The numbers are an interface: scripts compare them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    Failed,
    Refused,
    NotFound,
    NotAllowed,
    Unavailable,
    Broken,
    Rehearsal,
    /// As the command of a job that one works in: any number.
    OfCommand(u8),
}

/// Number and meaning, in the order of the numbers.
const TABLE: [(Exit, u8, &str); 8] = [
    (Exit::Done, 0, "done as asked"),
    (Exit::Failed, 1, "the job that was followed did not end well, or the asked-for thing failed"),
    (Exit::Refused, 2, "wrong usage, or input that is refused: a bad file, an unknown key"),
    (Exit::NotFound, 3, "no such job, node, account, user, log or store"),
    (Exit::NotAllowed, 4, "not allowed to you"),
    (Exit::Unavailable, 5, "the coordinator is away or cannot answer now: try again later"),
    (Exit::Broken, 6, "a fault of Tidegate itself, or a damaged store"),
    (Exit::Rehearsal, 7, "the rehearsal failed: the job did not save, leave and go on"),
];

impl Exit {
    pub(crate) fn number(self) -> u8 {
        if let Self::OfCommand(code) = self {
            return code;
        }
        TABLE.iter().find(|(exit, ..)| *exit == self).map_or(u8::MAX, |(_, number, _)| *number)
    }

    /// What a gRPC status code means to a script.
    pub(crate) fn of(code: Code) -> Self {
        match code {
            Code::Ok => Self::Done,
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::AlreadyExists
            | Code::OutOfRange
            | Code::Unimplemented => Self::Refused,
            Code::NotFound => Self::NotFound,
            Code::PermissionDenied | Code::Unauthenticated => Self::NotAllowed,
            Code::Unavailable
            | Code::ResourceExhausted
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Aborted => Self::Unavailable,
            Code::Internal | Code::DataLoss | Code::Unknown => Self::Broken,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}

/// The table as `--help` shows it.
pub(crate) fn help() -> String {
    let lines = TABLE.map(|(_, number, meaning)| format!("  {number}  {meaning}"));
    format!("Exit codes:\n{}", lines.join("\n"))
}

/// Why a command did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// To be told in one line.
    Told { exit: Exit, message: String },
    /// The command that one works in ended so. It has said itself what there is to say.
    Command { code: u8 },
    /// Whoever read the output has gone: nothing is left to say, and nobody to say it to.
    OutputClosed,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::Told { exit, message: message.into() }
    }

    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Told { exit, .. } => *exit,
            Self::Command { code } => Exit::OfCommand(*code),
            Self::OutputClosed => Exit::Done,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told { message, .. } => out.write_str(&plain(message)),
            Self::Command { code } => write!(out, "the command ended with {code}"),
            Self::OutputClosed => out.write_str("the output was closed"),
        }
    }
}

/// The coordinator's own sentence, and the exit code of its kind.
impl From<&Status> for Failure {
    fn from(status: &Status) -> Self {
        let message = match status.message() {
            "" => format!("the coordinator answered {:?} without a word", status.code()),
            message => message.to_owned(),
        };
        Self::new(Exit::of(status.code()), message)
    }
}

/// Of a write to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::OutputClosed;
        }
        Self::new(Exit::Failed, format!("standard output cannot be written: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_exit_once_with_its_own_number() {
        let numbers = TABLE.map(|(exit, ..)| exit.number());
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn every_grpc_code_has_the_documented_exit() {
        let expected = [
            (Code::Ok, 0),
            (Code::Cancelled, 5),
            (Code::Unknown, 6),
            (Code::InvalidArgument, 2),
            (Code::DeadlineExceeded, 5),
            (Code::NotFound, 3),
            (Code::AlreadyExists, 2),
            (Code::PermissionDenied, 4),
            (Code::ResourceExhausted, 5),
            (Code::FailedPrecondition, 2),
            (Code::Aborted, 5),
            (Code::OutOfRange, 2),
            (Code::Unimplemented, 2),
            (Code::Internal, 6),
            (Code::Unavailable, 5),
            (Code::DataLoss, 6),
            (Code::Unauthenticated, 4),
        ];
        for (code, number) in expected {
            assert_eq!(Exit::of(code).number(), number, "{code:?}");
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is() {
        let of = |kind: io::ErrorKind| Failure::from(io::Error::from(kind)).exit();
        assert_eq!(of(io::ErrorKind::BrokenPipe), Exit::Done);
        assert_eq!(of(io::ErrorKind::StorageFull), Exit::Failed);
    }

    #[test]
    fn a_message_cannot_move_the_cursor() {
        let failure = Failure::refused("a\x1b[2Jb\nc");
        assert_eq!(failure.to_string(), "a\\u{1b}[2Jb\\nc");
    }
}
