//! Three real servers as one cluster, streams of three replicas, and leaders that die.

use super::*;

struct Cluster {
    servers: Vec<Server>,
}

impl Cluster {
    fn start() -> Self {
        let mut servers: Vec<Server> = (0..3).map(|_| Server::absent()).collect();
        // Their own ports are taken by `absent`; routes get ports of further ones, which never run.
        let routes: Vec<u16> = (0..3).map(|_| Server::absent().port()).collect();
        for (index, server) in servers.iter_mut().enumerate() {
            let others: Vec<String> = routes
                .iter()
                .map(|port| format!("\"nats://127.0.0.1:{port}\""))
                .collect();
            server.configure(&format!(
                "server_name: s{index}\ncluster {{ name: c, listen: \"127.0.0.1:{}\", routes: [{}] }}",
                routes[index],
                others.join(", ")
            ));
            server.restart();
        }
        Self { servers }
    }

    fn config(&self) -> Config {
        Config {
            urls: self.servers.iter().map(Server::url).collect(),
            replicas: 3,
            ..Config::default()
        }
    }

    /// The server that leads the stream, as soon as one does.
    async fn leader(&self) -> usize {
        let deadline = Instant::now() + Duration::from_secs(180);
        loop {
            for server in &self.servers {
                let asked = async {
                    let context = server.jetstream().await;
                    let stream = context.get_stream(DATA).await.ok()?;
                    stream.cached_info().cluster.clone()?.leader
                };
                let leader = tokio::time::timeout(Duration::from_secs(5), asked).await;
                if let Ok(Some(name)) = leader {
                    return name[1..].parse().unwrap();
                }
            }
            assert!(Instant::now() < deadline, "no leader");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_that_die_leave_no_trace() {
    let mut cluster = Cluster::start();
    let rig = Rig::start(cluster.config());
    let rounds = std::env::var("SPARKGATE_KILLS").map_or(2, |text| text.parse::<usize>().unwrap());
    for _ in 0..rounds {
        rig.journal.append_data(4_000, 50);
        let mark = rig.journal.head(Lane::Data) - 2_500;
        rig.until("under way", |data, _| data.acked >= mark).await;
        let leader = cluster.leader().await;
        cluster.servers[leader].kill();
        // Two of three go on.
        rig.drained().await;
        rig.journal.append_data(1_000, 50);
        cluster.servers[leader].restart();
    }
    rig.drained().await;
    let leader = cluster.leader().await;
    let messages = cluster.servers[leader].read_all(DATA).await;
    check_complete(&messages, &rig.journal, Lane::Data);
    let config = cluster.servers[leader].stream_config(DATA).await;
    assert_eq!(config.num_replicas, 3);
}
