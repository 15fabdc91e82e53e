//! The folder of a node, and how its programs are run in it.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::Error;
use crate::janitor::Janitor;
use crate::server_user::ServerUser;

/// Nodes listen here and nowhere else.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The file in the node's folder that names the process group of everything that runs for it.
pub(crate) const GROUP_FILE: &str = "process-group";

/// How long a node may take to start: seconds on an idle machine, and generous, since a loaded one
/// must not fail a test.
const PATIENCE: Duration = Duration::from_secs(180);

/// How often a starting node is looked at.
const POLL: Duration = Duration::from_millis(20);

/// How long an answer to one greeting is waited for.
const GREETING_PATIENCE: Duration = Duration::from_secs(2);

/// How much of the node's log an error shows.
const LOG_TAIL_BYTES: u64 = 4096;

/// Ports come from below Linux's ephemeral range (from 32768), so that no outgoing connection takes
/// a killed node's port before it starts again.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// How many ports are tried before giving up.
const PORT_ATTEMPTS: usize = 20;

/// Where Debian puts the program that its `rabbitmq-server` in the `PATH`, which insists on being
/// root, is a wrapper of.
const DEBIAN_SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// Starts the port mapper, then becomes the node. `$1` is `rabbitmq-server`, `$2` the group file.
///
/// The port mapper runs in the node's process group; RabbitMQ would start one as a daemon that
/// outlives it. Standard input is given up once it is written down what is to be killed.
const SCRIPT: &str = r#"
echo $$ >"$2" || exit
exec </dev/null
epmd &
until epmd -names >/dev/null 2>&1; do
    kill -0 $! 2>/dev/null || exit 1
    sleep 0.02
done
exec "$1"
"#;

/// One scheduler, and none that spins while it waits: a node among tests on a small machine.
/// Distribution on the loopback interface alone, as everything else.
const VM_ARGUMENTS: &str = "+S 1:1 +SDcpu 1:1 +SDio 1 +sbwt none +sbwtdcpu none +sbwtdio none \
                            -kernel inet_dist_use_interface {127,0,0,1}";

/// Where a node listens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) amqp: u16,
    distribution: u16,
    port_mapper: u16,
}

impl Ports {
    /// Ports that nobody listens on right now.
    pub(crate) fn free() -> Result<Self, Error> {
        // Held until all are known, so that they differ.
        let listeners = [free_port()?, free_port()?, free_port()?];
        let mut ports = [0; 3];
        for (port, listener) in ports.iter_mut().zip(&listeners) {
            let address = listener
                .local_addr()
                .map_err(Error::io("looking at a port"))?;
            *port = address.port();
        }
        let [amqp, distribution, port_mapper] = ports;
        Ok(Self {
            amqp,
            distribution,
            port_mapper,
        })
    }
}

fn free_port() -> Result<TcpListener, Error> {
    let mut last = None;
    for _ in 0..PORT_ATTEMPTS {
        match TcpListener::bind((HOST, fastrand::u16(PORTS))) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    let source = last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into());
    Err(Error::Io {
        what: format!("looking for a free port on {HOST}"),
        source,
    })
}

/// A node's folder, with its data, its cookie and its log, and the janitor that removes it.
#[derive(Debug)]
pub(crate) struct Node {
    server: PathBuf,
    user: ServerUser,
    folder: PathBuf,
    janitor: Janitor,
}

impl Node {
    /// Makes an empty folder that the node's user owns, and has it watched.
    pub(crate) fn make() -> Result<Self, Error> {
        let server = find_server()?;
        let user = ServerUser::find()?;
        let base_dir = base_dir(&user)?;
        let folder = tempfile::Builder::new()
            .prefix("rabbitmq-")
            .tempdir_in(&base_dir)
            .map_err(Error::io(format!(
                "making a folder in {}",
                base_dir.display()
            )))?;
        user.own(folder.path())?;
        let janitor = Janitor::hire(&user, folder.path())?;
        Ok(Self {
            server,
            user,
            folder: folder.keep(),
            janitor,
        })
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("node.log")
    }

    /// Starts the node and waits until it takes AMQP connections.
    pub(crate) fn launch(&self, ports: Ports) -> Result<Child, Error> {
        let path = self.log();
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(Error::io(format!("opening {}", path.display())))?;
        let start = log
            .metadata()
            .map_err(Error::io("looking at the log"))?
            .len();
        let errors = log.try_clone().map_err(Error::io("opening the log"))?;
        // In a process group of its own: to be killed as a whole, and out of Ctrl-C's reach.
        let mut child = self
            .program(ports)
            .process_group(0)
            .stdin(self.janitor.wait_for()?)
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(Error::io("starting RabbitMQ"))?;
        let deadline = Instant::now() + PATIENCE;
        while !speaks_amqp(ports.amqp) {
            if let Some(status) = child
                .try_wait()
                .map_err(Error::io("waiting for RabbitMQ"))?
            {
                // The port mapper is still there.
                self.kill(child)?;
                let log = self.log_tail(start);
                return Err(Error::Exited { status, log });
            }
            if Instant::now() > deadline {
                self.kill(child)?;
                return Err(Error::Timeout {
                    seconds: PATIENCE.as_secs(),
                    log: self.log_tail(start),
                });
            }
            thread::sleep(POLL);
        }
        Ok(child)
    }

    /// Kills the node and whatever runs for it with SIGKILL.
    pub(crate) fn kill(&self, mut leader: Child) -> Result<(), Error> {
        let group = Pid::from_raw(leader.id().cast_signed());
        match killpg(group, Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(Error::io("killing RabbitMQ")(errno.into())),
        }
        leader.wait().map_err(Error::io("waiting for RabbitMQ"))?;
        // The janitor must not kill whoever has that number later.
        let path = self.folder.join(GROUP_FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(format!("removing {}", path.display()))(error))
            }
            _ => Ok(()),
        }
    }

    /// The node in an environment in which nothing of the system's RabbitMQ is left.
    fn program(&self, ports: Ports) -> Command {
        let mut command = self.user.shell(SCRIPT);
        command.arg(&self.server).arg(GROUP_FILE);
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("RABBITMQ_") || text.starts_with("ERL_") {
                command.env_remove(&name);
            }
        }
        let file = |name: &str| self.folder.join(name);
        command
            .current_dir(&self.folder)
            .env("HOME", &self.folder)
            .env("ERL_EPMD_ADDRESS", HOST.to_string())
            .env("ERL_EPMD_PORT", ports.port_mapper.to_string())
            .env(
                "RABBITMQ_NODENAME",
                format!("throwaway-{}@localhost", ports.amqp),
            )
            .env("RABBITMQ_NODE_IP_ADDRESS", HOST.to_string())
            .env("RABBITMQ_NODE_PORT", ports.amqp.to_string())
            .env("RABBITMQ_DIST_PORT", ports.distribution.to_string())
            .env("RABBITMQ_MNESIA_BASE", file("data"))
            .env("RABBITMQ_LOG_BASE", file("log"))
            // To standard output.
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_PID_FILE", file("pid"))
            .env("RABBITMQ_FEATURE_FLAGS_FILE", file("feature-flags"))
            .env("RABBITMQ_PLUGINS_EXPAND_DIR", file("plugins"))
            .env("RABBITMQ_GENERATED_CONFIG_DIR", file("config"))
            // None of these is there: defaults, and no plugins.
            .env("RABBITMQ_CONF_ENV_FILE", file("rabbitmq-env.conf"))
            .env("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", file("advanced.config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", file("enabled_plugins"))
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", VM_ARGUMENTS)
            // Together: the script becomes the virtual machine instead of waiting for it, and that
            // reads no input.
            .env("RABBITMQ_ALLOW_INPUT", "1")
            .env("RABBITMQ_SERVER_START_ARGS", "-noinput");
        command
    }

    /// The end of the log, from byte `start` at the earliest, under a heading; empty when there is
    /// no log yet.
    fn log_tail(&self, start: u64) -> String {
        let path = self.log();
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&path)?;
            let end = file.metadata()?.len();
            file.seek(SeekFrom::Start(
                start.max(end.saturating_sub(LOG_TAIL_BYTES)),
            ))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) if !bytes.is_empty() => {
                let text = String::from_utf8_lossy(&bytes);
                format!("--- the end of {}:\n{}", path.display(), text.trim_end())
            }
            _ => String::new(),
        }
    }
}

/// The `rabbitmq-server` that runs nodes.
fn find_server() -> Result<PathBuf, Error> {
    let candidates: Vec<PathBuf> = match env::var_os("RABBITMQ_SERVER") {
        Some(path) if !path.is_empty() => vec![path.into()],
        _ => {
            let in_path = env::var_os("PATH").unwrap_or_default();
            let folders = env::split_paths(&in_path).map(|folder| folder.join("rabbitmq-server"));
            [PathBuf::from(DEBIAN_SERVER)]
                .into_iter()
                .chain(folders)
                .collect()
        }
    };
    let found = candidates.iter().find(|path| path.is_file());
    found.cloned().ok_or_else(|| Error::NoServer {
        tried: list(&candidates),
    })
}

/// The first of the usual folders that the node's user may work in.
fn base_dir(user: &ServerUser) -> Result<PathBuf, Error> {
    let named = env::var_os("TMPDIR").map(PathBuf::from);
    let candidates: Vec<PathBuf> = named
        .into_iter()
        .chain(["/var/tmp", "/tmp"].map(PathBuf::from))
        .collect();
    let found = candidates.iter().find(|folder| user.may_write_to(folder));
    found.cloned().ok_or_else(|| Error::NoFolder {
        tried: list(&candidates),
    })
}

fn list(paths: &[PathBuf]) -> String {
    let shown = paths.iter().map(|path| path.display().to_string());
    shown.collect::<Vec<_>>().join(", ")
}

/// Whether somebody on that port answers AMQP's greeting as a broker does that takes connections:
/// with a frame of a method, and not with the version it would rather speak.
fn speaks_amqp(port: u16) -> bool {
    /// The protocol's name and version 0-9-1.
    const GREETING: &[u8; 8] = b"AMQP\0\0\x09\x01";
    const METHOD_FRAME: u8 = 1;

    let address = SocketAddr::from((HOST, port));
    let greet = || -> std::io::Result<u8> {
        let mut stream = TcpStream::connect_timeout(&address, GREETING_PATIENCE)?;
        stream.set_read_timeout(Some(GREETING_PATIENCE))?;
        stream.write_all(GREETING)?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    };
    greet().is_ok_and(|kind| kind == METHOD_FRAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_broker_speaks_amqp() {
        let listener = free_port().unwrap();
        let port = listener.local_addr().unwrap().port();
        for (answer, expected) in [(b"AMQP\0\0\x09\x01", false), (b"\x01\0\0\0\0\0\0\0", true)] {
            thread::scope(|scope| {
                let asking = scope.spawn(move || speaks_amqp(port));
                let (mut stream, _) = listener.accept().unwrap();
                let mut greeting = [0; 8];
                stream.read_exact(&mut greeting).unwrap();
                assert_eq!(&greeting, b"AMQP\0\0\x09\x01");
                stream.write_all(answer).unwrap();
                assert_eq!(asking.join().unwrap(), expected);
            });
        }
        drop(listener);
        assert!(!speaks_amqp(port));
    }

    #[test]
    fn ports_differ() {
        let ports = Ports::free().unwrap();
        assert_ne!(ports.amqp, ports.distribution);
        assert_ne!(ports.amqp, ports.port_mapper);
        assert_ne!(ports.distribution, ports.port_mapper);
    }
}
