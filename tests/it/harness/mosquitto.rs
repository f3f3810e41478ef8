//! Mosquitto as another broker: a child process on ports of its own.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
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

fn openssl(folder: &Path, args: &[&str]) {
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

/// Makes `<name>.key` and `<name>.pem`, signed by the authority that lies in the folder.
fn sign(folder: &Path, name: &str, common_name: &str) {
    let file = |ending: &str| format!("{name}.{ending}");
    let (key, request, certificate, extensions) =
        (file("key"), file("csr"), file("pem"), file("ext"));
    let (key, request, certificate) = (key.as_str(), request.as_str(), certificate.as_str());
    let subject = format!("/CN={common_name}");
    let new = ["req", "-newkey", "ec", "-pkeyopt", CURVE, "-nodes"];
    let made = ["-keyout", key, "-out", request, "-subj", subject.as_str()];
    openssl(folder, &[&new[..], &made[..]].concat());
    std::fs::write(
        folder.join(&extensions),
        format!("subjectAltName=DNS:{common_name}\n"),
    )
    .expect("file");
    let sign = ["x509", "-req", "-days", "2", "-CAcreateserial"];
    let by = ["-CA", "ca.pem", "-CAkey", "ca.key"];
    let what = [
        "-in",
        request,
        "-out",
        certificate,
        "-extfile",
        extensions.as_str(),
    ];
    openssl(folder, &[&sign[..], &by[..], &what[..]].concat());
}

const CURVE: &str = "ec_paramgen_curve:prime256v1";

impl Mosquitto {
    /// A broker, with `tls` on a second port as well.
    pub fn start(tls: bool) -> Self {
        Self::with(tls, false)
    }

    /// A broker whose TLS port takes nobody without a certificate of its authority ([`Self::client`]); who comes there is
    /// known by the certificate's name.
    pub fn start_demanding() -> Self {
        Self::with(true, true)
    }

    fn with(tls: bool, demanding: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = free_address();
        let mut config = format!(
            "per_listener_settings true\nlistener {} 127.0.0.1\nallow_anonymous true\n",
            plain.port()
        );
        let tls = tls.then(|| {
            let at = folder.path();
            let new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", CURVE, "-nodes"];
            let made = ["-keyout", "ca.key", "-out", "ca.pem", "-days", "2"];
            openssl(
                at,
                &[&new[..], &made[..], &["-subj", "/CN=test authority"]].concat(),
            );
            sign(at, "server", "localhost");
            let address = free_address();
            config += &format!(
                "listener {} 127.0.0.1\ncertfile {}\nkeyfile {}\n",
                address.port(),
                at.join("server.pem").display(),
                at.join("server.key").display(),
            );
            if demanding {
                sign(at, "client", "sparkgate");
                config += &format!(
                    "cafile {}\nrequire_certificate true\nuse_identity_as_username true\n",
                    at.join("ca.pem").display()
                );
            } else {
                config += "allow_anonymous true\n";
            }
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

    /// Certificate and key that a demanding broker takes.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        let at = self.folder.path();
        (at.join("client.pem"), at.join("client.key"))
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
            .find(|path| Path::new(path).exists())
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
        until("mosquitto listens", 60, || TcpStream::connect(address).ok());
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.kill();
    }
}
