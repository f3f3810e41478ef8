//! The `sparkgate` command.

fn main() -> std::process::ExitCode {
    sparkgate::cli::main()
}
