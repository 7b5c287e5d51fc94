//! A benchmark with several ranks on this machine: a process for each, started here as this command with one more option,
//! and their numbers put together as those of one job. `rank` is the other end of the line to each.
//!
//! Rank 0 comes first: it lists the dataset and says at which port it is met, where the others get its catalog. What only the
//! ranks know is made here, and given to them by their environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::interrupt::Interrupt;

/// How long Ctrl-C may go unnoticed.
const PATIENCE: Duration = Duration::from_millis(100);

/// How the command was started: what was run, and with which arguments.
#[derive(Clone)]
pub(crate) struct Invocation {
    pub(crate) program: Vec<OsString>,
    pub(crate) arguments: Vec<OsString>,
}

/// What a rank said.
enum Said {
    Port(u16),
    Step,
    End(Value),
    /// Its line is closed.
    Gone,
}

/// All ranks that were started. Dropping it ends those that still run.
struct Ranks {
    children: Vec<Child>,
    lines: Vec<ChildStdin>,
    said: Receiver<(usize, Said)>,
    saying: Sender<(usize, Said)>,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended already is only waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs all ranks to their end; the numbers of each, as it gave them.
pub(super) fn run(
    invocation: &Invocation,
    number: u32,
    interrupt: &Interrupt,
) -> Result<Vec<Value>> {
    let secret = secret()?;
    let (saying, said) = channel();
    let mut ranks = Ranks {
        children: Vec::new(),
        lines: Vec::new(),
        said,
        saying,
    };
    ranks.start(invocation, &secret, None)?;
    let port = ranks.port_of_first()?;
    // Only now: until there is something to wait for, Ctrl-C ends all of them.
    interrupt.hold();
    for _ in 1..number {
        ranks.start(invocation, &secret, Some(port))?;
    }
    ranks.finish(interrupt)
}

impl Ranks {
    fn start(&mut self, invocation: &Invocation, secret: &str, port: Option<u16>) -> Result<()> {
        let rank = self.children.len();
        let [program, before @ ..] = &invocation.program[..] else {
            bail!("it is not known how this command was started; run the foresee command")
        };
        let mut command = Command::new(program);
        command
            .args(before)
            .args(&invocation.arguments)
            .arg(format!("--as-rank={rank}"))
            .env("FORESEE_PEERS_SECRET", secret)
            .env(
                "FORESEE_PEERS_PORT",
                port.map_or_else(|| "auto".to_owned(), |port| port.to_string()),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if rank > 0 {
            // One of them shows its progress.
            command.stderr(Stdio::piped());
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start rank {rank}"))?;
        if let Some(line) = child.stdin.take() {
            self.lines.push(line);
        }
        if let Some(out) = child.stdout.take() {
            let saying = self.saying.clone();
            spawn(move || listen(rank, out, &saying))?;
        }
        if let Some(err) = child.stderr.take() {
            spawn(move || pass_on(err))?;
        }
        self.children.push(child);
        Ok(())
    }

    /// Where rank 0 is met; 0: nowhere.
    fn port_of_first(&mut self) -> Result<u16> {
        match self.said.recv() {
            Ok((_, Said::Port(port))) => Ok(port),
            _ => Err(self.failed(0)),
        }
    }

    /// Goes on until all have said their numbers.
    fn finish(&mut self, interrupt: &Interrupt) -> Result<Vec<Value>> {
        let mut numbers: BTreeMap<usize, Value> = BTreeMap::new();
        let mut arrived = 0;
        while numbers.len() < self.children.len() {
            match self.said.recv_timeout(PATIENCE) {
                Ok((_, Said::Step)) => arrived += 1,
                Ok((rank, Said::End(its))) => {
                    numbers.insert(rank, its);
                }
                Ok((rank, Said::Gone)) if !numbers.contains_key(&rank) => {
                    return Err(self.failed(rank));
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("all ranks are gone"),
            }
            // Where they end early, nobody waits for those that have.
            if arrived > 0 && (interrupt.is_raised() || arrived + numbers.len() == self.lines.len())
            {
                arrived = 0;
                self.go();
            }
        }
        Ok(numbers.into_values().collect())
    }

    fn go(&mut self) {
        for line in &mut self.lines {
            // One that has ended does not listen, and need not.
            let _ = line.write_all(b"go\n").and_then(|()| line.flush());
        }
    }

    /// A rank ended without its numbers; it has said why.
    fn failed(&mut self, rank: usize) -> anyhow::Error {
        let status = self.children[rank].wait();
        let how = status.map_or_else(
            |_| "nobody knows how".to_owned(),
            |status| status.to_string(),
        );
        anyhow!("rank {rank} failed ({how}); its own message is above")
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let builder = thread::Builder::new().name("foresee-rank".to_owned());
    builder.spawn(work).context("cannot start a thread")?;
    Ok(())
}

fn listen(rank: usize, out: impl Read, saying: &Sender<(usize, Said)>) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        let said = match line.split_once(' ') {
            None if line == "step" => Some(Said::Step),
            Some(("port", port)) => port.parse().ok().map(Said::Port),
            Some(("end", numbers)) => serde_json::from_str(numbers).ok().map(Said::End),
            _ => None,
        };
        if let Some(said) = said
            && saying.send((rank, said)).is_err()
        {
            return;
        }
    }
    // Nobody may listen any more.
    let _ = saying.send((rank, Said::Gone));
}

fn pass_on(err: impl Read) {
    for line in BufReader::new(err).lines().map_while(Result::ok) {
        #[expect(clippy::print_stderr, reason = "what a rank says, as it says it")]
        {
            eprintln!("{line}");
        }
    }
}

/// What only the ranks of this run know.
pub(super) fn secret() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .context("/dev/urandom")?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}
