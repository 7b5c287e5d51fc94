//! The table `[peers]`: whether ranks serve each other, where they meet, and what only they know.
//!
//! The secret itself is in no table: it comes from a file that is the user's alone, or from the environment. It is read when
//! ranks are about to meet, and never printed.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::geteuid;
use toml::Value;

use crate::environment::Environment;
use crate::error::InputError;
use crate::reader::{Keys, Section, key, quoted};

pub(crate) const PEERS: Keys = Keys {
    place: "in [peers]",
    all: &[
        key("transport", r#""auto""#, "how ranks reach each other"),
        key(
            "mpi_library",
            r#""/opt/mpi/lib/libmpi.so.40""#,
            "the file of the MPI library to load",
        ),
        key("port", "29400", "the port of rank 0"),
        key(
            "bind",
            r#""192.168.0.7""#,
            "the address that a rank listens at",
        ),
        key(
            "secret_file",
            r#""/home/ada/foresee.secret""#,
            "the file with the job's secret",
        ),
        key(
            "encrypt",
            "true",
            "whether what ranks send each other is encrypted",
        ),
        key(
            "patience",
            r#""60 s""#,
            "how long ranks wait for each other at the start",
        ),
        key(
            "deadline",
            r#""5 s""#,
            "how long a trainer waits for a sample of another rank",
        ),
        key(
            "linger",
            r#""60 s""#,
            "how long a rank that is done serves the others",
        ),
    ],
};

/// The variable that holds the secret itself. It is no key, and never among what is printed.
pub(crate) const SECRET_VARIABLE: &str = "FORESEE_PEERS_SECRET";

/// Fewer can be guessed, or are a slip of the hand.
const SECRET_BYTES_MIN: usize = 16;
/// More are no secret but some other file.
const SECRET_BYTES_MAX: usize = 4096;

/// Programs start within seconds of each other, and one that validates on its first rank only must not hang for long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than any healthy answer, shorter than a trainer's patience.
const DEADLINE: Duration = Duration::from_secs(5);
const LINGER: Duration = Duration::from_secs(60);
/// A day: longer is a slip of the hand.
const WAIT_S_MAX: f64 = 86_400.0;

/// Times end with one of these; a number alone counts seconds.
const TIMES: [(&str, f64); 3] = [("ms", 1e-3), ("min", 60.0), ("s", 1.0)];

/// How ranks serve each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// By which way.
    pub transport: Transport,
    /// The MPI library to load; none: that of the launcher.
    pub mpi_library: Option<PathBuf>,
    /// Rank 0's port; none: as the launcher has it.
    pub port: Option<u16>,
    /// The address that a rank listens at; none: loopback where all ranks are on one host, else all addresses.
    pub bind: Option<IpAddr>,
    /// The file with the secret.
    pub secret_file: Option<PathBuf>,
    /// Whether what is sent is encrypted.
    pub encrypt: bool,
    /// How long ranks wait for each other at the start.
    pub patience: Duration,
    /// How long a trainer stands at a sample of another rank before the source is read.
    pub deadline: Duration,
    /// How long a rank that is done serves the others.
    pub linger: Duration,
}

/// How ranks reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// As they can: those of a host by memory that they share, others by MPI where the program has initialised it, else by
    /// TCP.
    #[default]
    Auto,
    /// By TCP, also on one host.
    Tcp,
    /// As they can, with MPI in the place of TCP, also where nobody has initialised it.
    Mpi,
    /// By MPI, also on one host.
    MpiOnly,
    /// As they can; where ranks of a host cannot share memory that is said.
    Shared,
    /// Not at all: each serves itself.
    None,
}

impl Transport {
    /// As the file has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tcp => "tcp",
            Self::Mpi => "mpi",
            Self::MpiOnly => "mpi-only",
            Self::Shared => "shared",
            Self::None => "none",
        }
    }

    /// Whether ranks of a host share memory where they can.
    pub fn shares_memory(self) -> bool {
        matches!(self, Self::Auto | Self::Mpi | Self::Shared)
    }

    /// Whether MPI is to be used, even where the program has not initialised it; none: only where it has.
    pub fn wants_mpi(self) -> Option<bool> {
        match self {
            Self::Mpi | Self::MpiOnly => Some(true),
            Self::Auto => None,
            Self::Tcp | Self::Shared | Self::None => Some(false),
        }
    }
}

/// What only the ranks of a job know. Messages never show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// As it was given at `place`, without white space around it.
    fn of(place: &str, text: &[u8]) -> Result<Self, InputError> {
        let bytes = text.trim_ascii();
        if bytes.len() < SECRET_BYTES_MIN {
            let what = format!("a secret of {} bytes can be guessed", bytes.len());
            return Err(wrong(place, what, MAKE_ONE));
        }
        if bytes.len() > SECRET_BYTES_MAX {
            let what = format!("longer than {SECRET_BYTES_MAX} bytes");
            return Err(wrong(place, what, MAKE_ONE));
        }
        Ok(Self(bytes.to_vec()))
    }
}

const MAKE_ONE: &str = "give at least 16, as `openssl rand -hex 32` makes them";

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(...)")
    }
}

impl Default for Peers {
    fn default() -> Self {
        Self {
            transport: Transport::Auto,
            mpi_library: None,
            port: None,
            bind: None,
            secret_file: None,
            encrypt: false,
            patience: PATIENCE,
            deadline: DEADLINE,
            linger: LINGER,
        }
    }
}

impl Peers {
    pub(crate) fn read(section: &Section<'_>) -> Result<Self, InputError> {
        let transport = section.choice(
            "transport",
            &[
                ("auto", Transport::Auto),
                ("tcp", Transport::Tcp),
                ("mpi", Transport::Mpi),
                ("mpi-only", Transport::MpiOnly),
                ("shared", Transport::Shared),
                ("none", Transport::None),
            ],
        )?;
        Ok(Self {
            transport,
            mpi_library: file(section, "mpi_library")?,
            port: port(section)?,
            bind: bind(section)?,
            secret_file: file(section, "secret_file")?,
            encrypt: section.flag("encrypt")?,
            patience: wait(section, "patience", PATIENCE)?,
            deadline: wait(section, "deadline", DEADLINE)?,
            linger: wait(section, "linger", LINGER)?,
        })
    }

    /// What only the ranks of the job know: of the environment, else of the file; none where neither has it.
    pub fn secret(&self, environment: &Environment) -> Result<Option<Secret>, InputError> {
        if let Some(given) = environment
            .get(SECRET_VARIABLE)
            .filter(|given| !given.is_empty())
        {
            return Secret::of(SECRET_VARIABLE, given.as_encoded_bytes()).map(Some);
        }
        let Some(path) = &self.secret_file else {
            return Ok(None);
        };
        let bytes = read_alone(path)?;
        Secret::of(&path.display().to_string(), &bytes).map(Some)
    }
}

/// Reads a file that nobody but this user can read.
fn read_alone(path: &Path) -> Result<Vec<u8>, InputError> {
    let place = path.display().to_string();
    let unreadable =
        |cause: std::io::Error| wrong(&place, cause.to_string(), "check peers.secret_file");
    // Opening a pipe would wait for somebody to write to it.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(wrong(
            &place,
            "is no file".into(),
            "check peers.secret_file",
        ));
    }
    let file = File::open(path).map_err(unreadable)?;
    // Of what was opened: the name may lead elsewhere by now.
    let found = file.metadata().map_err(unreadable)?;
    if found.uid() != geteuid().as_raw() {
        let what = "another user owns this secret";
        return Err(wrong(&place, what.into(), "give a file of your own"));
    }
    if found.mode() & 0o077 != 0 {
        let what = "others may read or write this secret".to_owned();
        let remedy = format!("make it yours alone: chmod 600 {place}");
        return Err(wrong(&place, what, remedy));
    }
    let mut bytes = Vec::new();
    let mut within = file.take(SECRET_BYTES_MAX as u64 + 2);
    within.read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Rank 0's port; 0 and `"auto"` leave it to the launcher.
fn port(section: &Section<'_>) -> Result<Option<u16>, InputError> {
    match section.get("port") {
        None => Ok(None),
        Some(Value::String(word)) if word == "auto" => Ok(None),
        Some(Value::String(word)) => {
            let what = format!("{} is not known", quoted(word));
            Err(section.error(
                "port",
                what,
                r#"give "auto" or a whole number from 0 to 65535"#,
            ))
        }
        Some(_) => {
            let port = section.whole("port", 0..=u64::from(u16::MAX))? as u16;
            Ok((port > 0).then_some(port))
        }
    }
}

fn bind(section: &Section<'_>) -> Result<Option<IpAddr>, InputError> {
    match section.get("bind") {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(_) => {
            let text = section.text("bind")?;
            let remedy = r#"give a number such as "192.168.0.7", "0.0.0.0" or "::""#;
            let wrong =
                |_| section.error("bind", format!("{} is no address", quoted(text)), remedy);
            text.trim().parse().map(Some).map_err(wrong)
        }
    }
}

/// A file; none where it is empty.
pub(crate) fn file(section: &Section<'_>, key: &str) -> Result<Option<PathBuf>, InputError> {
    match section.get(key) {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(_) => Ok(Some(section.text(key)?.into())),
    }
}

/// A time: a string with a unit, or a number of seconds.
pub(crate) fn wait(
    section: &Section<'_>,
    key: &str,
    otherwise: Duration,
) -> Result<Duration, InputError> {
    let remedy = r#"write seconds, or a number and one of ms, s, min, up to a day, as in "60 s""#;
    let seconds = match section.get(key) {
        None => return Ok(otherwise),
        Some(Value::Integer(number)) => Some(*number as f64),
        Some(Value::Float(number)) => Some(*number),
        Some(Value::String(text)) => seconds(text),
        Some(other) => return Err(section.mistyped(key, other, "a time")),
    };
    let allowed = seconds.filter(|seconds| (0.0..=WAIT_S_MAX).contains(seconds));
    allowed.map(Duration::from_secs_f64).ok_or_else(|| {
        let given = section.get(key).map_or_else(String::new, Value::to_string);
        section.error(key, format!("{given} is not a time"), remedy)
    })
}

fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let (number, unit) = TIMES
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
        .unwrap_or((text, 1.0));
    Some(number.trim().parse::<f64>().ok()? * unit)
}

fn wrong(place: &str, what: String, remedy: impl Into<String>) -> InputError {
    InputError::Wrong {
        place: place.to_owned(),
        what,
        remedy: remedy.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{Config, Given};

    fn peers(text: &str, variables: &[(&str, &str)]) -> Result<Peers, String> {
        let environment = variables.iter().copied().collect();
        Config::resolve(Given::Table(text.parse().unwrap()), &environment)
            .map(|resolved| resolved.config.peers)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_read_and_variables_win() {
        let text = r#"
            [peers]
            transport = "tcp"
            mpi_library = "m"
            port = 29400
            bind = "::1"
            secret_file = "s"
            encrypt = true
            patience = "2 min"
            deadline = 0.5
            linger = "250ms"
        "#;
        let expected = Peers {
            transport: Transport::Tcp,
            mpi_library: Some("m".into()),
            port: Some(29_400),
            bind: Some("::1".parse().unwrap()),
            secret_file: Some("s".into()),
            encrypt: true,
            patience: Duration::from_secs(120),
            deadline: Duration::from_millis(500),
            linger: Duration::from_millis(250),
        };
        assert_eq!(peers(text, &[]), Ok(expected));
        let given = [
            ("FORESEE_PEERS_TRANSPORT", "none"),
            ("FORESEE_PEERS_MPI_LIBRARY", ""),
            ("FORESEE_PEERS_PORT", "auto"),
            ("FORESEE_PEERS_BIND", ""),
            ("FORESEE_PEERS_SECRET_FILE", ""),
            ("FORESEE_PEERS_ENCRYPT", "false"),
            ("FORESEE_PEERS_PATIENCE", "60"),
            ("FORESEE_PEERS_DEADLINE", "5 s"),
            ("FORESEE_PEERS_LINGER", "1 min"),
            ("FORESEE_PEERS_SECRET", "0123456789abcdef"),
        ];
        let expected = Peers {
            transport: Transport::None,
            ..Peers::default()
        };
        assert_eq!(peers(text, &given), Ok(expected));
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let cases = [
            (
                "transport = \"udp\"",
                r#"transport: "udp" is not known; give how ranks reach each other as one of "auto", "tcp", "mpi", "mpi-only", "shared", "none""#,
            ),
            (
                "port = 65536",
                "port: 65536 is too big; give the port of rank 0, a whole number from 0 to 65535",
            ),
            (
                "bind = \"here\"",
                r#"bind: "here" is no address; give a number such as "192.168.0.7", "0.0.0.0" or "::""#,
            ),
            (
                "linger = \"long\"",
                "linger: \"long\" is not a time; write seconds, or a number and one of ms, s, min, up to a day, as in \
                 \"60 s\"",
            ),
            (
                "patience = -1",
                "patience: -1 is not a time; write seconds, or a number and one of ms, s, min, up to a day, as in \
                 \"60 s\"",
            ),
            (
                "secret = \"x\"",
                "secret: unknown key; the keys here are transport, mpi_library, port, bind, secret_file, encrypt, \
                 patience, deadline, linger",
            ),
        ];
        for (text, expected) in cases {
            let said = peers(&format!("[peers]\n{text}"), &[]).unwrap_err();
            assert_eq!(said, format!("config: peers.{expected}"));
        }
    }

    #[test]
    fn the_secret_is_of_the_environment_or_of_a_file_that_is_ours_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let name = path.display().to_string();
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let peers = Peers {
                secret_file: Some(path.clone()),
                ..Peers::default()
            };
            let nothing = Environment::default();
            let secret = peers.secret(&nothing).map_err(|error| error.to_string())?;
            Ok::<_, String>(secret.unwrap().bytes().to_vec())
        };
        assert_eq!(with_mode(0o600), Ok(b"0123456789abcdef".to_vec()));
        assert_eq!(
            with_mode(0o640),
            Err(format!(
                "{name}: others may read or write this secret; make it yours alone: chmod 600 {name}"
            ))
        );
        let given = Environment::from_iter([("FORESEE_PEERS_SECRET", "fedcba9876543210")]);
        let secret = Peers::default().secret(&given).unwrap().unwrap();
        assert_eq!(secret.bytes(), b"fedcba9876543210");
        assert_eq!(format!("{secret:?}"), "Secret(...)");
    }

    #[test]
    fn a_secret_that_can_be_guessed_is_refused_without_being_shown() {
        let given = Environment::from_iter([("FORESEE_PEERS_SECRET", "hunter2")]);
        let said = Peers::default().secret(&given).unwrap_err().to_string();
        assert_eq!(
            said,
            "FORESEE_PEERS_SECRET: a secret of 7 bytes can be guessed; give at least 16, as `openssl rand -hex 32` makes \
             them"
        );
        assert_eq!(Peers::default().secret(&Environment::default()), Ok(None));
    }

    #[test]
    fn the_secret_is_not_among_what_is_said_to_have_a_say() {
        let environment = Environment::from_iter([("FORESEE_PEERS_SECRET", "0123456789abcdef")]);
        let resolved = Config::resolve(Given::Table(toml::Table::new()), &environment).unwrap();
        assert_eq!(resolved.given_by, ["config"]);
    }
}
