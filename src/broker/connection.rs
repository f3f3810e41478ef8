//! One client's connection: bytes to packets and back, with time limits.
//!
//! One task a connection, and nothing allocated while it is idle: bytes are read into a buffer that all
//! connections of a thread share, and only the beginning of an incomplete packet is kept.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Sleep, sleep_until, timeout_at};

use super::Written;
use super::auth::{self, Credentials};
use super::codec::{
    Connack, Connect, DecodeError, Packet, Version, connack, decode, disconnect, frame,
    packet_id_only, publish, reason,
};
use super::link::{Cause, Link};
use super::outbound::Outgoing;
use super::router::{Accepted, Key, Peer, out_publish};
use super::shell::Shell;

/// Bytes read at once.
const READ: usize = 64 << 10;
/// No more is taken from the session while this many bytes wait for the socket.
const FILL: usize = 128 << 10;
/// No more is read while this many bytes wait for the socket: a client that asks and never listens is stopped.
const STOP_READING: usize = 512 << 10;
/// Packets handled under one hold of the router.
const BATCH: usize = 64;
/// Bytes of a client that has to wait which are read all the same, for the sake of what is in them that need not wait.
const LOOKAHEAD: usize = 64 << 10;
/// A payload in a packet at least this large shares the packet's buffer; smaller ones are copied, so that a few
/// bytes that stay never pin many.
const SHARED: usize = 32 << 10;
/// Largest CONNECT.
const LARGEST_CONNECT: usize = 256 << 10;
/// Time to get a last packet out.
const FAREWELL: Duration = Duration::from_secs(1);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
}

/// Where a connection comes from.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    /// Name in the client's certificate.
    pub(crate) certificate: Option<Arc<str>>,
    /// Reason code with which it is refused whatever it says.
    pub(crate) refuse: Option<u8>,
}

/// Serves a connection to its end.
pub(crate) async fn serve<S>(mut stream: S, shell: Arc<Shell>, origin: Origin, deadline: Instant)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Ok(settings) = shell.settings() else {
        return;
    };
    let limit = settings.max_packet.min(LARGEST_CONNECT);
    let read = timeout_at(deadline.into(), read_connect(&mut stream, limit)).await;
    let (request, rest) = match read {
        Ok(Ok(read)) => read,
        Ok(Err(None)) => return,
        Ok(Err(Some(error))) => {
            return shell.turn_away("connect_malformed", origin.address, &error);
        }
        Err(_) => {
            return shell.turn_away("connect_timeout", origin.address, &"no CONNECT in time");
        }
    };
    let version = request.version;
    let credentials = Credentials::of(&request, &origin);
    let access = match shell.access.read() {
        Ok(access) => Arc::clone(&access),
        Err(_) => return,
    };
    let verdict = match origin.refuse {
        Some(code) => Err(code),
        None => auth::authenticate(access, credentials).await,
    };
    if let Err(code) = verdict {
        let _ = shell.with(|router| {
            let (client, address) = (&request.client, &origin.address);
            router
                .clients
                .refuse(Instant::now(), refusal(code), client, address);
        });
    }
    let link = shell.new_link();
    let accepted = verdict.and_then(|identity| {
        shell
            .with(|router| {
                // As they are now: a reload may have come while the password was checked.
                let rights = shell
                    .access
                    .read()
                    .unwrap_or_else(PoisonError::into_inner)
                    .rights(identity.user.as_deref(), &request.client);
                let peer = Peer {
                    address: origin.address,
                    user: identity.user,
                    rights,
                };
                router.connect(Instant::now(), request, &peer, &link)
            })
            .unwrap_or(Err(reason::SERVER_UNAVAILABLE))
    });
    match accepted {
        Ok(accepted) => {
            let guard = Detach {
                shell: Arc::clone(&shell),
                key: accepted.key,
            };
            let mut connection =
                Connection::new(stream, shell, link, accepted, settings.max_packet);
            connection.receive_maximum = usize::from(settings.limits.receive_maximum.max(1));
            connection.max_memory = settings.max_memory;
            connection.run(rest).await;
            drop(guard);
        }
        Err(code) => refuse(&mut stream, version, code).await,
    }
}

/// Why a connection is refused before the router sees its CONNECT.
fn refusal(code: u8) -> &'static str {
    match code {
        reason::BAD_USER_OR_PASSWORD => "connect_password",
        reason::NOT_AUTHORIZED => "connect_anonymous",
        reason::QUOTA_EXCEEDED => "connections_per_address",
        _ => "connections",
    }
}

/// Sees to it that the router learns of the end, even if the task panics or is dropped.
struct Detach {
    shell: Arc<Shell>,
    key: Key,
}

impl Drop for Detach {
    fn drop(&mut self) {
        // A failure is recorded by the shell itself.
        let _ = self
            .shell
            .with(|router| router.disconnect(Instant::now(), self.key, Cause::Socket));
    }
}

async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, version: Version, code: u8) {
    let mut out = Vec::new();
    connack(
        &mut out,
        version,
        &Connack {
            reason: code,
            ..Connack::default()
        },
    );
    farewell(stream, &out).await;
}

/// Sends last bytes and closes. What the peer still sends is read and thrown away for a moment: closing a socket
/// with unread data would destroy the last bytes on their way.
async fn farewell<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, out: &[u8]) {
    // The peer may be gone already: nothing depends on these bytes.
    let _ = tokio::time::timeout(FAREWELL, async {
        stream.write_all(out).await?;
        stream.shutdown().await?;
        let mut sink = [0; 512];
        while stream.read(&mut sink).await? > 0 {}
        std::io::Result::Ok(())
    })
    .await;
}

/// Reads until CONNECT is complete; what came after it is returned too. An error has been answered where the norm
/// has an answer.
/// CONNECT, and what came behind it; `None`: the client left.
async fn read_connect<S>(
    stream: &mut S,
    limit: usize,
) -> Result<(Connect, Bytes), Option<DecodeError>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut buffer = BytesMut::with_capacity(512);
    loop {
        // Only CONNECT may come first; anything else is not worth waiting for.
        if buffer.first().is_some_and(|first| *first != 0x10) {
            return Err(Some(DecodeError::Protocol("CONNECT must come first")));
        }
        let found = match frame(&buffer, limit) {
            Ok(found) => found,
            Err(error) => return Err(Some(error)),
        };
        if let Some(frame) = found.filter(|f| f.total <= buffer.len()) {
            let packet = buffer.split_to(frame.total).freeze();
            let body = packet.get(frame.header..).unwrap_or_default();
            return match decode(Version::V311, frame.first, body, None) {
                Ok(Packet::Connect(connect)) => Ok((*connect, buffer.freeze())),
                Ok(_) => Err(Some(DecodeError::Protocol("CONNECT must come first"))),
                Err(error) => {
                    let v5 = body.get(6) == Some(&5)
                        || matches!(error, DecodeError::Version(level) if level > 5);
                    let version = if v5 { Version::V5 } else { Version::V311 };
                    if v5 || matches!(error, DecodeError::Version(_)) {
                        refuse(stream, version, error.reason()).await;
                    }
                    Err(Some(error))
                }
            };
        }
        match stream.read_buf(&mut buffer).await {
            Ok(n) if n > 0 => {}
            _ => return Err(None),
        }
    }
}

struct Connection<S> {
    stream: S,
    shell: Arc<Shell>,
    link: Arc<Link>,
    key: Key,
    version: Version,
    patience: Option<Duration>,
    last_heard: Instant,
    max_packet: usize,
    max_memory: usize,
    receive_maximum: usize,
    /// The beginning of an incomplete packet.
    partial: BytesMut,
    /// Bytes for the socket, and how many of them are written.
    out: Vec<u8>,
    written: usize,
    /// Whom to tell when `out` is written up to a place.
    marks: Vec<(usize, Written)>,
    batch: Vec<Outgoing>,
    /// The session may have more to send.
    more: bool,
    /// `partial` may have whole packets, left there while the client had to wait.
    backlog: bool,
    /// So much of `partial` is packets that have to wait.
    waiting: usize,
    /// So much of it is in the sum that the shell keeps.
    accounted: usize,
    /// The stream has ended while the client had to wait; what it sent before comes first.
    ended: bool,
    /// Aliases set towards the client.
    aliases: HashMap<Arc<str>, u16>,
    most_aliases: u16,
}

/// What ended a wait.
enum Turn {
    /// Something moved: see what is to be sent.
    Go,
    End(Cause),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    fn new(
        stream: S,
        shell: Arc<Shell>,
        link: Arc<Link>,
        accepted: Accepted,
        max_packet: usize,
    ) -> Self {
        Self {
            stream,
            shell,
            link,
            key: accepted.key,
            version: accepted.version,
            patience: accepted.patience,
            last_heard: Instant::now(),
            max_packet,
            max_memory: usize::MAX,
            receive_maximum: usize::from(u16::MAX),
            partial: BytesMut::new(),
            out: Vec::new(),
            written: 0,
            marks: Vec::new(),
            batch: Vec::new(),
            more: true,
            backlog: false,
            waiting: 0,
            accounted: 0,
            ended: false,
            aliases: HashMap::new(),
            most_aliases: accepted.topic_aliases,
        }
    }

    async fn run(&mut self, rest: Bytes) {
        let mut cause = self.feed(&rest, Instant::now()).err();
        drop(rest);
        let link = Arc::clone(&self.link);
        let far = Duration::from_secs(86_400);
        let mut clock = pin!(sleep_until(
            (self.last_heard + self.patience.unwrap_or(far)).into()
        ));
        while cause.is_none() {
            cause = link.stopped();
            if cause.is_some() {
                break;
            }
            if self.backlog && !self.is_held_back() {
                cause = self.feed(&[], Instant::now()).err();
                if cause.is_some() {
                    break;
                }
            }
            self.fill();
            let mut woken = pin!(link.woken());
            let turn = poll_fn(|cx| self.poll(cx, woken.as_mut(), clock.as_mut())).await;
            if let Turn::End(end) = turn {
                cause = Some(end);
            }
        }
        let cause = cause.unwrap_or(Cause::Socket);
        // A failure is recorded by the shell itself.
        let _ = self
            .shell
            .with(|router| router.disconnect(Instant::now(), self.key, cause));
        self.shell.hold(self.accounted, 0);
        if let Some(code) = cause.reason() {
            let mut out = self.out.split_off(self.written.min(self.out.len()));
            if out.len() < STOP_READING {
                disconnect(&mut out, self.version, code);
                farewell(&mut self.stream, &out).await;
            }
        }
    }

    /// One round: write, read, look whether somebody called, look at the clock.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        woken: Pin<&mut impl Future<Output = ()>>,
        mut clock: Pin<&mut Sleep>,
    ) -> Poll<Turn> {
        match self.poll_write(cx) {
            Poll::Ready(Ok(())) if self.more => return Poll::Ready(Turn::Go),
            Poll::Ready(Err(_)) => return Poll::Ready(Turn::End(Cause::Socket)),
            _ => {}
        }
        let held_back = self.is_held_back();
        if self.backlog && !held_back {
            // Before anything is read: an end of the stream comes after what is left of it.
            return Poll::Ready(Turn::Go);
        }
        let room = match held_back {
            false => READ,
            true if self.shell.held() < self.max_memory / 8 => {
                LOOKAHEAD.saturating_sub(self.partial.len())
            }
            true => 0,
        };
        let deaf = held_back && self.ended;
        if room > 0 && !deaf && self.out.len() - self.written < STOP_READING {
            match self.poll_read(cx, room, held_back) {
                Poll::Ready(Ok(())) => return Poll::Ready(Turn::Go),
                Poll::Ready(Err(cause)) => return Poll::Ready(Turn::End(cause)),
                Poll::Pending => {}
            }
        }
        if woken.poll(cx).is_ready() {
            self.more = true;
            return Poll::Ready(Turn::Go);
        }
        while clock.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if held_back {
                // It is the gateway that does not listen.
                self.last_heard = now;
            }
            let patience = self.patience.unwrap_or(Duration::from_secs(86_400));
            let due = self.last_heard + patience;
            if due <= now && self.patience.is_some() {
                return Poll::Ready(Turn::End(Cause::KeepAlive));
            }
            clock
                .as_mut()
                .reset(due.max(now + Duration::from_millis(1)).into());
        }
        Poll::Pending
    }

    /// Writes what is there; ready when it is all written.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        while self.written < self.out.len() {
            let rest = self.out.get(self.written..).unwrap_or_default();
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
            if n == 0 {
                return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
            }
            self.written += n;
            if !self.marks.is_empty() {
                self.tell_written();
            }
        }
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.written = 0;
        self.out.clear();
        if !self.more && self.out.capacity() > 0 {
            (self.out, self.batch) = (Vec::new(), Vec::new());
        }
        Poll::Ready(Ok(()))
    }

    fn tell_written(&mut self) {
        let now = Instant::now();
        let written = self.written;
        self.marks.retain(|(end, mark)| {
            let done = *end <= written;
            if done {
                mark.tell(now);
            }
            !done
        });
    }

    /// Whether the client's publishes have to wait: for a subscriber, for the pipeline, or for acknowledgements. The task
    /// is woken when that ends.
    fn is_held_back(&self) -> bool {
        self.link.is_held()
            || self.shell.is_paused(&self.link)
            || self.link.waiting_acks() >= self.receive_maximum
    }

    /// Reads once, at most `room` bytes, and handles what is complete, or as much of it as need not wait.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        held_back: bool,
    ) -> Poll<Result<(), Cause>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let room = room.min(scratch.len());
            let mut buffer = ReadBuf::new(scratch.get_mut(..room).unwrap_or_default());
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    let now = Instant::now();
                    self.last_heard = now;
                    Poll::Ready(if held_back {
                        self.overhear(buffer.filled(), now)
                    } else {
                        self.feed(buffer.filled(), now)
                    })
                }
                _ if held_back && self.backlog => {
                    self.ended = true;
                    Poll::Ready(Ok(()))
                }
                _ => Poll::Ready(Err(Cause::Socket)),
            }
        })
    }

    /// Handles of a client that has to wait what need not: its pings, or it would take the broker for dead, and its
    /// acknowledgements. All else is kept in its order, and taken up by [`Self::feed`] when the wait is over.
    fn overhear(&mut self, data: &[u8], now: Instant) -> Result<(), Cause> {
        self.partial.extend_from_slice(data);
        let all = std::mem::take(&mut self.partial);
        let mut packets = Vec::new();
        let mut at = self.waiting;
        // What stays: up to the first packet that is taken out, and after each.
        let mut kept = Vec::new();
        let mut from = 0;
        loop {
            let rest = all.get(at..).unwrap_or_default();
            let found = frame(rest, self.max_packet).map_err(|e| Cause::Protocol(e.reason()))?;
            let Some(found) = found.filter(|f| f.total <= rest.len()) else {
                break;
            };
            let next = at + found.total;
            // PUBACK, PUBREC, PUBREL, PUBCOMP, PINGREQ
            if matches!(found.first >> 4, 4..=7 | 12) {
                let body = rest.get(found.header..found.total).unwrap_or_default();
                let packet = decode(self.version, found.first, body, None)
                    .map_err(|e| Cause::Protocol(e.reason()))?;
                packets.push((packet, next));
                kept.push(from..at);
                from = next;
            }
            at = next;
        }
        if !packets.is_empty() {
            self.route(packets, now, false)?;
        }
        if kept.is_empty() {
            self.waiting = at;
            self.partial = all;
        } else {
            for range in kept.into_iter().chain(std::iter::once(from..at)) {
                self.partial
                    .extend_from_slice(all.get(range).unwrap_or_default());
            }
            self.waiting = self.partial.len();
            self.partial
                .extend_from_slice(all.get(at..).unwrap_or_default());
        }
        self.backlog = !self.partial.is_empty();
        self.account()
    }

    /// Handles the packets that `data` completes and keeps the rest.
    fn feed(&mut self, data: &[u8], now: Instant) -> Result<(), Cause> {
        self.backlog = false;
        self.waiting = 0;
        if self.partial.is_empty() {
            let used = self.handle(data, None, now)?;
            self.partial
                .extend_from_slice(data.get(used..).unwrap_or_default());
        } else {
            self.partial.extend_from_slice(data);
            let found =
                frame(&self.partial, self.max_packet).map_err(|e| Cause::Protocol(e.reason()))?;
            if found.is_some_and(|f| f.total <= self.partial.len()) {
                let whole = std::mem::take(&mut self.partial).freeze();
                let used = self.handle(&whole, Some(&whole), now)?;
                self.partial
                    .extend_from_slice(whole.get(used..).unwrap_or_default());
            }
        }
        self.account()?;
        if self.backlog {
            self.overhear(&[], now)?;
        }
        Ok(())
    }

    /// Gives back an empty buffer, and keeps the sum of what all connections hold.
    fn account(&mut self) -> Result<(), Cause> {
        if self.partial.is_empty() && self.partial.capacity() > 0 {
            self.partial = BytesMut::new();
        }
        let now = self.partial.len();
        let before = std::mem::replace(&mut self.accounted, now);
        if before != now && self.shell.hold(before, now) > self.max_memory && now > READ {
            return Err(Cause::Protocol(reason::QUOTA_EXCEEDED));
        }
        Ok(())
    }

    /// Handles the complete packets of a buffer, up to one at which the client has to wait; bytes used.
    fn handle(
        &mut self,
        buffer: &[u8],
        owner: Option<&Bytes>,
        now: Instant,
    ) -> Result<usize, Cause> {
        let mut used = 0;
        loop {
            let mut packets = Vec::new();
            let mut failed = None;
            while packets.len() < BATCH {
                let rest = buffer.get(used..).unwrap_or_default();
                let found = match frame(rest, self.max_packet) {
                    Ok(found) => found,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                };
                let Some(found) = found.filter(|f| f.total <= rest.len()) else {
                    break;
                };
                let body = rest.get(found.header..found.total).unwrap_or_default();
                let owner = owner.filter(|_| found.total >= SHARED);
                match decode(self.version, found.first, body, owner) {
                    Ok(packet) => packets.push((packet, used + found.total)),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
                used += found.total;
            }
            let full = packets.len() == BATCH;
            if !packets.is_empty() {
                let done = self.route(packets, now, true)?;
                if done < used {
                    self.backlog = true;
                    return Ok(done);
                }
            }
            if let Some(error) = failed {
                tracing::debug!(%error, "packet refused");
                return Err(Cause::Protocol(error.reason()));
            }
            if !full {
                return Ok(used);
            }
        }
    }

    /// Gives packets to the router, where `heed` up to the first that makes the client wait; where the last one that it
    /// took ends.
    fn route(
        &mut self,
        packets: Vec<(Packet<'_>, usize)>,
        now: Instant,
        heed: bool,
    ) -> Result<usize, Cause> {
        let shell = Arc::clone(&self.shell);
        let key = self.key;
        let link = &self.link;
        let waiting = self.out.len() - self.written;
        let (out, batch) = (&mut self.out, &mut self.batch);
        let mut control = Vec::new();
        let (result, more) = shell
            .with(|router| {
                let mut done = 0;
                for (packet, end) in packets {
                    if let Err(cause) = router.packet(now, key, packet, &shell) {
                        return (Err(cause), false);
                    }
                    done = end;
                    if heed && link.is_held() {
                        break;
                    }
                }
                let more =
                    waiting >= FILL || router.take(now, key, FILL - waiting, &mut control, batch);
                (Ok(done), more)
            })
            .map_err(|_| Cause::Shutdown)?;
        out.append(&mut control);
        self.more = more;
        self.encode(now);
        result
    }

    /// Takes what the session has to send, up to the fill level, and the acknowledgements whose turn has come.
    fn fill(&mut self) {
        let waiting = self.out.len() - self.written;
        if self.more && waiting < FILL {
            let now = Instant::now();
            let (key, batch) = (self.key, &mut self.batch);
            let mut control = Vec::new();
            let taken = self
                .shell
                .with(|router| router.take(now, key, FILL - waiting, &mut control, batch));
            self.out.append(&mut control);
            self.more = taken.unwrap_or(false);
            self.encode(now);
        }
        self.link.drain_acks(self.version, &mut self.out);
    }

    fn encode(&mut self, now: Instant) {
        for outgoing in self.batch.drain(..) {
            let (item, pid, dup) = match outgoing {
                Outgoing::Publish { item, pid, dup } => (item, pid, dup),
                Outgoing::Pubrel(pid) => {
                    packet_id_only(&mut self.out, self.version, 0x62, pid, reason::SUCCESS);
                    continue;
                }
            };
            let mut packet = out_publish(&item, pid, dup, now);
            if self.most_aliases > 0 {
                let next = u16::try_from(self.aliases.len() + 1).unwrap_or(u16::MAX);
                match self.aliases.get(&item.message.topic) {
                    Some(alias) => (packet.alias, packet.topic) = (Some(*alias), ""),
                    None if next <= self.most_aliases => {
                        self.aliases.insert(Arc::clone(&item.message.topic), next);
                        packet.alias = Some(next);
                    }
                    None => {}
                }
            }
            publish(&mut self.out, self.version, &packet);
            if let Some(mark) = &item.message.on_written {
                self.marks.push((self.out.len(), mark.clone()));
            }
        }
    }
}
