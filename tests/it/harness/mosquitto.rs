//! Mosquitto as another broker: a child process on ports of its own.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::gateway::free_address;
use super::until;

/// A running (or killed) mosquitto. Dropping it kills the process.
pub struct Mosquitto {
    folder: tempfile::TempDir,
    child: Option<Child>,
    pub plain: SocketAddr,
    /// Port with TLS, where it has one; its certificate is for `localhost`.
    pub tls: Option<SocketAddr>,
}

fn openssl(folder: &std::path::Path, args: &[&str]) {
    let output = Command::new("openssl")
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("openssl runs (apt-get install openssl)");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

impl Mosquitto {
    pub fn start(tls: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = free_address();
        let mut config = format!(
            "allow_anonymous true\nlistener {} 127.0.0.1\n",
            plain.port()
        );
        let tls = tls.then(|| {
            let at = folder.path();
            openssl(
                at,
                &[
                    "req",
                    "-x509",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:prime256v1",
                    "-nodes",
                    "-keyout",
                    "ca.key",
                    "-out",
                    "ca.pem",
                    "-days",
                    "2",
                    "-subj",
                    "/CN=test authority",
                ],
            );
            openssl(
                at,
                &[
                    "req",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:prime256v1",
                    "-nodes",
                    "-keyout",
                    "server.key",
                    "-out",
                    "server.csr",
                    "-subj",
                    "/CN=localhost",
                ],
            );
            std::fs::write(at.join("ext"), "subjectAltName=DNS:localhost\n").expect("file");
            openssl(
                at,
                &[
                    "x509",
                    "-req",
                    "-in",
                    "server.csr",
                    "-CA",
                    "ca.pem",
                    "-CAkey",
                    "ca.key",
                    "-CAcreateserial",
                    "-out",
                    "server.pem",
                    "-days",
                    "2",
                    "-extfile",
                    "ext",
                ],
            );
            let address = free_address();
            config += &format!(
                "listener {} 127.0.0.1\ncertfile {}\nkeyfile {}\n",
                address.port(),
                at.join("server.pem").display(),
                at.join("server.key").display(),
            );
            address
        });
        // Started by root, it would give its rights up and could not read its own files.
        config += "user root\n";
        std::fs::write(folder.path().join("mosquitto.conf"), config).expect("configuration");
        let mut broker = Self {
            folder,
            child: None,
            plain,
            tls,
        };
        broker.restart();
        broker
    }

    /// The authority that signed its certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill");
            child.wait().expect("wait");
        }
    }

    /// Starts it (again), with nothing retained.
    pub fn restart(&mut self) {
        self.kill();
        let program = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"]
            .iter()
            .find(|path| std::path::Path::new(path).exists())
            .unwrap_or(&"mosquitto");
        let child = Command::new(program)
            .arg("-c")
            .arg(self.folder.path().join("mosquitto.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mosquitto runs (apt-get install mosquitto)");
        self.child = Some(child);
        let address = self.plain;
        until("mosquitto listens", 20, || TcpStream::connect(address).ok());
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.kill();
    }
}
