//! Arguments of what is done with accounts, budgets and roles.

use std::fmt;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use tidegate_model::{AccountPath, SubmitKey};
use tidegate_proto::v1;

use super::bounds::count;
use crate::amount::{GpuTime, Size};

/// Ten years of windows of 7 days.
const MAX_WEEKS: u32 = 520;

/// What the account above all others is called here. On the wire it has no path.
pub(crate) const ROOT: &str = "root";

/// An account of which the root is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnyAccount {
    Root,
    Path(AccountPath),
}

impl AnyAccount {
    /// As the wire has it: the root is empty.
    pub(crate) fn on_wire(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Path(path) => path.to_string(),
        }
    }
}

impl FromStr for AnyAccount {
    type Err = <AccountPath as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == ROOT { Ok(Self::Root) } else { text.parse().map(Self::Path) }
    }
}

impl fmt::Display for AnyAccount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => out.pad(ROOT),
            Self::Path(path) => path.fmt(out),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct AccountsArgs {
    /// Only this account and those below it
    #[arg(value_name = "PATH")]
    pub(crate) below: Option<AnyAccount>,
    /// The users of each account too
    #[arg(long)]
    pub(crate) users: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// So many windows of 7 days, back from now
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(1, MAX_WEEKS), allow_negative_numbers = true)]
    pub(crate) weeks: u32,
    /// Only this account and those below it
    #[arg(long, value_name = "PATH")]
    pub(crate) account: Option<AnyAccount>,
    /// Lines of comma-separated values, with exact amounts
    #[arg(long)]
    pub(crate) csv: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BudgetCommand {
    /// Give an account its budget; makes the account where it is missing
    #[command(after_help = "Examples:\n  tidegate budget set olmo 30%\n  tidegate budget set \
                            olmo/pretrain 1200h\n\nA share is of the parent's budget; hours are \
                            GPU-hours of a window of 7 days. A cut\ncomes into force over one \
                            window, or at once with --now: then ordinary work of\nthe account is \
                            free until its window has slid. What a cut frees can be given to\n\
                            others as it comes into force: a new cluster, all of which is the \
                            budget of default, is\ndivided with `tidegate budget set default 10% \
                            --now`.")]
    Set {
        /// The account
        account: AccountPath,
        /// 30% of the parent, or 1200h in GPU-hours of a window
        #[arg(allow_hyphen_values = true)]
        size: Size,
        /// A cut comes into force at once, not over a window
        #[arg(long)]
        now: bool,
    },
    /// Show one budget: figures, transfers, requests, newest edits
    #[command(after_help = "Example:\n  tidegate budget show olmo/pretrain")]
    Show {
        /// The account
        account: AnyAccount,
    },
    /// Move GPU-hours from one account to another, for one window
    #[command(
        after_help = "Example:\n  tidegate budget transfer olmo/pretrain olmo/sft 100h\n\nIt \
                            is made once, however often it is asked under one key while it is in \
                            force;\neach command makes a key of its own."
    )]
    Transfer {
        /// The account that gives
        from: AccountPath,
        /// The account that gets
        to: AccountPath,
        /// GPU-hours, such as 100 or 100h
        #[arg(value_name = "HOURS", allow_hyphen_values = true)]
        amount: GpuTime,
        /// It never lapses
        #[arg(long)]
        permanent: bool,
        /// Your own key: the same key makes one transfer
        #[arg(long, value_name = "ULID")]
        key: Option<SubmitKey>,
    },
    /// Ask for another budget; a manager of the account above answers
    #[command(after_help = "Example:\n  tidegate budget request olmo/sft 20% --reason \"deadline \
                            on Friday\"")]
    Request {
        /// The account
        account: AccountPath,
        /// 30% of the parent, or 1200h in GPU-hours of a window
        #[arg(allow_hyphen_values = true)]
        size: Size,
        /// Why; shown to everybody
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Grant what a user has asked for
    #[command(after_help = "Example:\n  tidegate budget approve olmo/sft ana")]
    Approve(AnswerArgs),
    /// Turn down what a user has asked for
    #[command(after_help = "Example:\n  tidegate budget decline olmo/sft ana")]
    Decline(AnswerArgs),
    /// Delete an account that has no live jobs and none below it
    #[command(after_help = "Example:\n  tidegate budget delete olmo/sft")]
    Delete {
        /// The account
        account: AccountPath,
    },
}

#[derive(Debug, Args)]
pub(crate) struct AnswerArgs {
    /// The account
    pub(crate) account: AccountPath,
    /// Who asked (name or uid)
    pub(crate) user: String,
    /// Only if this is what is asked for
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) size: Option<Size>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RoleCommand {
    /// Say what a user may do in an account and below it
    #[command(after_help = "Examples:\n  tidegate role set olmo ana manager\n  tidegate role set \
                            olmo/sft bo none\n\nA manager decides on budgets and people below the \
                            account, a member submits jobs, a\nreader looks. On an account on \
                            whose path nobody is named, everybody may submit.")]
    Set {
        /// The account, or root
        account: AnyAccount,
        /// The user (name or uid)
        user: String,
        /// The role
        role: RoleName,
    },
    /// List who may do what
    #[command(after_help = "Example:\n  tidegate role list olmo")]
    List {
        /// Only this account and those below it
        #[arg(value_name = "PATH")]
        below: Option<AnyAccount>,
    },
}

/// A role, or that there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleName {
    Manager,
    Member,
    Reader,
    None,
}

impl RoleName {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Member => "member",
            Self::Reader => "reader",
            Self::None => "none",
        }
    }
}

impl From<RoleName> for v1::Role {
    fn from(role: RoleName) -> Self {
        match role {
            RoleName::Manager => Self::Manager,
            RoleName::Member => Self::Member,
            RoleName::Reader => Self::Reader,
            RoleName::None => Self::Unspecified,
        }
    }
}
