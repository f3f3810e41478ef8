//! The command line: what can be typed. What each verb does stands in the module of its name.

use std::path::PathBuf;

use crate::telemetry::chain;
use clap::{Args, Parser, Subcommand, ValueEnum};

mod alarms;
mod audit;
mod backup;
pub mod client;
#[cfg(feature = "demo")]
pub mod demo;
mod export;
mod generate;
mod models;
mod offline;
mod online;
mod replay;
mod rules;
pub mod run;
mod table;
#[cfg(feature = "top")]
mod top;
mod watch;

/// Exit status for an unusable configuration (EX_CONFIG of sysexits.h).
pub const EX_CONFIG: u8 = 78;

/// An edge gateway for MQTT Sparkplug B.
#[derive(Debug, Parser)]
#[command(name = "sparkgate", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// How listings are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Default)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs: one JSON document.
    Json,
}

/// Which configuration is meant.
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    /// Configuration file [default: /etc/sparkgate/sparkgate.toml, then /etc/sparkgate/conf.d/*.toml]
    #[arg(short, long, env = "SPARKGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Folder of drop-ins, read after the file in name order
    #[arg(long, env = "SPARKGATE_CONFIG_DIR")]
    pub config_dir: Option<PathBuf>,
}

/// Which running gateway is meant.
#[derive(Debug, Clone, Args)]
pub struct Reach {
    /// Reach the gateway over HTTP instead of its admin socket
    #[arg(long, env = "SPARKGATE_URL")]
    pub url: Option<String>,
    /// File with the token that writes over HTTP need
    #[arg(long, env = "SPARKGATE_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Admin socket [default: /run/sparkgate/admin.sock, or the one the configuration names]
    #[arg(long, env = "SPARKGATE_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Whose socket it is, where none is named.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Options of every listing.
#[derive(Debug, Clone, Args)]
pub struct Listing {
    /// Which gateway.
    #[command(flatten)]
    pub reach: Reach,
    /// Print a table or JSON
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the gateway
    Run(ConfigArgs),
    /// Check everything that `run` would check, and print every mistake
    Validate {
        #[command(flatten)]
        config: ConfigArgs,
        /// Print a table or JSON
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Run the main job with a simulated fleet
    #[cfg(feature = "demo")]
    Demo(demo::DemoArgs),
    /// Health of a running gateway on one screen
    Status(Listing),
    /// The same live, in a terminal: devices, alarms, rules, models, writes
    #[cfg(feature = "top")]
    Top {
        #[command(flatten)]
        reach: Reach,
        /// Time between two readings
        #[arg(long, default_value = "1s")]
        every: crate::config::quantity::Span,
    },
    /// List, explain, switch and test rules
    Rules {
        #[command(subcommand)]
        verb: rules::RulesVerb,
    },
    /// List, verify, measure and change models
    Models {
        #[command(subcommand)]
        verb: models::ModelsVerb,
    },
    /// Nodes and devices as the host knows them
    Devices {
        #[command(subcommand)]
        verb: online::DevicesVerb,
    },
    /// Write a metric and wait for the device to confirm it
    Write {
        /// group/node or group/node/device; percent-encode a `/` inside a name
        target: String,
        /// Metric and value, such as `Cooling/Enable=true`
        assignment: String,
        /// Never send it later than this
        #[arg(long, default_value = "5s")]
        ttl: crate::config::quantity::Span,
        /// Say what would be sent, or why not, and send nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        listing: Listing,
    },
    /// Local writes and their outcomes
    Commands {
        #[command(subcommand)]
        verb: online::CommandsVerb,
    },
    /// Who did what: the audit log
    Audit {
        #[command(subcommand)]
        verb: audit::AuditVerb,
    },
    /// Let nothing write to a node or device for a while
    Hold {
        /// group/node or group/node/device
        target: String,
        /// How long; `0s` releases it
        #[arg(long = "for")]
        period: crate::config::quantity::Span,
        #[command(flatten)]
        reach: Reach,
    },
    /// Alarms: list and operate
    Alarms {
        #[command(subcommand)]
        verb: alarms::AlarmsVerb,
    },
    /// Live decoded traffic, one JSON line a metric
    Tap {
        /// Glob over `group/node/device/metric`, such as `plantA/*/press-*/Temperature`
        filter: Option<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// The journal on disk; works with the gateway stopped, too
    Buffer {
        #[command(subcommand)]
        verb: offline::BufferVerb,
    },
    /// Compare what the configuration declares with what the NATS server has
    Doctor {
        #[command(flatten)]
        config: ConfigArgs,
        /// First make streams, buckets and the hub as declared
        #[arg(long)]
        fix: bool,
        /// Print a table or JSON
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Add or change a user of the embedded broker; reads the password from the terminal or stdin
    Passwd {
        /// Users file
        file: PathBuf,
        /// User name
        user: String,
    },
    /// Show the configuration in force
    Config {
        #[command(subcommand)]
        verb: offline::ConfigVerb,
    },
    /// Configuration, rules, models and state in one file, of a running or a stopped gateway
    Backup {
        /// File to write, a gzipped tar
        file: PathBuf,
        #[command(flatten)]
        listing: Listing,
    },
    /// Put a backup back in place; the gateway must be stopped
    Restore(backup::RestoreArgs),
    /// Print a shell's completion script
    Completion {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages
    Man {
        /// Folder for them
        folder: PathBuf,
    },
}

/// Runs the verb; the exit status is the contract's.
#[must_use]
pub fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let done = match cli.verb {
        Verb::Run(config) => return run::run(&config),
        Verb::Validate { config, output } => return offline::validate(&config, output),
        #[cfg(feature = "demo")]
        Verb::Demo(args) => demo::demo(&args),
        Verb::Status(listing) => online::status(&listing),
        #[cfg(feature = "top")]
        Verb::Top { reach, every } => top::top(&reach, every),
        Verb::Rules { verb } => return rules::rules(verb),
        Verb::Models { verb } => return models::models(verb),
        Verb::Devices { verb } => online::devices(verb),
        Verb::Write {
            target,
            assignment,
            ttl,
            dry_run,
            listing,
        } => {
            return online::write(&target, &assignment, ttl, dry_run, &listing);
        }
        Verb::Commands { verb } => online::commands(verb),
        Verb::Audit { verb } => return audit::audit(verb),
        Verb::Hold {
            target,
            period,
            reach,
        } => online::hold(&target, period, &reach),
        Verb::Alarms { verb } => alarms::alarms(verb),
        Verb::Tap { filter, reach } => online::tap(filter.as_deref(), &reach),
        Verb::Buffer { verb } => return offline::buffer(verb),
        Verb::Doctor {
            config,
            fix,
            output,
        } => return offline::doctor(&config, fix, output),
        Verb::Passwd { file, user } => offline::passwd(&file, &user),
        Verb::Config { verb } => return offline::config(verb),
        Verb::Backup { file, listing } => backup::backup(&file, &listing.reach, listing.output),
        Verb::Restore(args) => backup::restore(&args),
        Verb::Completion { shell } => generate::completion(shell),
        Verb::Man { folder } => generate::man(&folder),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sparkgate: {}", chain(error.as_ref()));
            std::process::ExitCode::FAILURE
        }
    }
}
