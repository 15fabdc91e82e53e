//! A run from its beginning to its judgement.
//!
//! 1. A cluster, a broker, consumers behind a proxy, a publisher.
//! 2. Chaos, until the time is over and there were enough kills and deliveries.
//! 3. Calm: everything that was begun is published to its end, and the consumers, started anew,
//!    bring it to rest. Nobody helps them.
//! 4. The operator: every poison message must be a dead letter by now. Some are mended and retried,
//!    some are skipped, some stay.
//! 5. Copies of what was settled long ago.
//! 6. The judgement.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    env,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use cutting_proxy::{Cut, Proxy};
use rabbitmq_consumer::dead_queue;
use tempfile::TempDir;
use throwaway_broker::Broker;
use throwaway_cluster::Cluster;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::sleep,
};
use tokio_postgres::{Client, NoTls};

use crate::{
    checker::{Evidence, Key, judge, judge_poison},
    crew::{Crew, Orders},
    figures::{Cuts, Kills, Report},
    ledger::{self, Progress},
    plan::{Plan, Strike},
    publisher::{Publisher, Signals, keep_publishing, publish_copies},
    tally::Tally,
    workload::{Fate, Planned, Traffic, Workload},
};

/// How often the consumers and the clock are looked at.
const POLL: Duration = Duration::from_millis(20);

/// How often the figures are looked at, and told.
const LOOK: Duration = Duration::from_secs(1);
const TELL: Duration = Duration::from_secs(10);

/// The deliveries a second for which the plan's pauses are made. A machine that manages fewer gets
/// longer pauses in proportion, up to so many times: it would otherwise do little else than start
/// what was killed.
const PACE: f64 = 350.0;
const LONGEST_STRETCH: f64 = 10.0;

/// How often it is looked whether all is quiet.
const SETTLE_POLL: Duration = Duration::from_millis(250);

/// How long nothing at all may change, with empty queues, before what is not done counts as stuck.
/// Consumers sweep twice a second, and no pause of theirs is longer than some seconds.
const STUCK_AFTER: Duration = Duration::from_secs(45);

/// How long a run may take to come to rest.
const SETTLE_LIMIT: Duration = Duration::from_secs(600);

/// How long the server may take to be there again.
const SERVER_PATIENCE: Duration = Duration::from_secs(60);

/// How often dead letters by bad luck are retried: each time there are fewer.
const RETRY_ROUNDS: usize = 10;

/// How often consumers are asked to leave nothing in the queues: what they hold when they stop goes
/// back.
const EMPTYING_ROUNDS: usize = 10;

/// Copies of settled messages, of each traffic.
const LATE_COPIES: usize = 150;

/// What a run is to be like.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What it follows from.
    pub seed: u64,
    /// How long things are struck at least.
    pub duration: Duration,
    /// How many consumer processes there are.
    pub consumers: usize,
    /// How many kills there are at least.
    pub min_kills: u64,
    /// How many deliveries there are at least.
    pub min_deliveries: u64,
    /// When a run that has not reached these is given up.
    pub limit: Duration,
    /// Whether the consumers take messages without a claim.
    pub is_unclaimed: bool,
}

/// Makes a run.
///
/// # Errors
///
/// When it could not be made; what it finds out stands in the report.
pub async fn run(settings: Settings) -> Result<Report> {
    let started = Instant::now();
    let mut run = Run::prepare(settings).await?;
    let publishing = run.publish();
    run.crew.start(run.settings.consumers)?;
    let chaos = run.strike().await?;
    let workloads = run.calm_down(publishing).await?;
    let mut report = run.conclude(workloads).await?;
    report.chaos = chaos;
    report.elapsed = started.elapsed();
    Ok(report)
}

/// The cuts that the plan asked for and the proxy makes.
#[derive(Debug, Default)]
struct Shears {
    armed: VecDeque<Cut>,
    made: Cuts,
}

impl Shears {
    fn cut(&mut self) -> Option<Cut> {
        let cut = self.armed.pop_front()?;
        self.made.count(cut);
        Some(cut)
    }
}

struct Run {
    settings: Settings,
    crew: Crew,
    /// Takes no more connections when it is dropped.
    _proxy: Proxy,
    shears: Arc<Mutex<Shears>>,
    signals: Signals,
    kills: Kills,
    admin: Admin,
    /// Lent to the task that publishes.
    publisher: Option<Publisher>,
    problems: Vec<String>,
    broker: Arc<Broker>,
    cluster: Arc<Cluster>,
    folder: TempDir,
}

impl Run {
    async fn prepare(settings: Settings) -> Result<Self> {
        let cluster = spawn_blocking(|| {
            Cluster::builder()
                // No test makes the operating system crash, and only that would be lost.
                .fsync(false)
                .preload("sequential_inbox")
                .setting("sequential_inbox.housekeeping_interval", "1s")
                .start()
        });
        let broker = spawn_blocking(Broker::start);
        let cluster = Arc::new(cluster.await?.context("cannot start PostgreSQL")?);
        let broker = Arc::new(broker.await?.context("cannot start RabbitMQ")?);
        cluster.createdb(ledger::DATABASE)?;
        let mut admin = Admin::new(cluster.dsn_of(ledger::DATABASE));
        ledger::prepare(admin.client().await?).await?;

        let shears = Arc::new(Mutex::new(Shears::default()));
        let server = format!("{}:{}", cluster.host(), cluster.port()).parse()?;
        let asked = Arc::clone(&shears);
        let proxy = Proxy::start(server, move || {
            asked.lock().unwrap_or_else(PoisonError::into_inner).cut()
        })?;
        let folder = tempfile::Builder::new().prefix("chaos-").tempdir()?;
        let journals = folder.path().join("journals");
        std::fs::create_dir(&journals)?;
        let crew = Crew::new(Orders {
            program: program(settings.is_unclaimed)?,
            amqp_url: broker.amqp_url(),
            dsn: format!(
                "host={} port={} user={} dbname={} connect_timeout=10",
                proxy.address().ip(),
                proxy.address().port(),
                ledger::ROLE,
                ledger::DATABASE
            ),
            seed: settings.seed,
            journals,
            log: folder.path().join("consumers.log"),
        });
        let publisher = Publisher::connect(&broker.amqp_url()).await?;
        Ok(Self {
            settings,
            crew,
            _proxy: proxy,
            shears,
            signals: Signals::default(),
            kills: Kills::default(),
            admin,
            publisher: Some(publisher),
            problems: Vec::new(),
            broker,
            cluster,
            folder,
        })
    }

    /// Starts to publish.
    fn publish(&mut self) -> JoinHandle<Result<(Publisher, Vec<Workload>)>> {
        let publisher = self.publisher.take();
        let (seed, has_poison) = (self.settings.seed, !self.settings.is_unclaimed);
        let workloads = Traffic::ALL.map(|traffic| Workload::new(traffic, seed, has_poison));
        let signals = self.signals.clone();
        tokio::spawn(async move {
            let publisher = publisher.context("there is no publisher")?;
            keep_publishing(publisher, workloads.into(), signals).await
        })
    }

    fn tally(&self) -> Result<Tally> {
        Ok(Tally::read(&self.folder.path().join("journals"))?)
    }

    /// Strikes until it is enough: how long that took.
    async fn strike(&mut self) -> Result<Duration> {
        let started = Instant::now();
        let (mut looked, mut told) = (started, started);
        let mut stretch = 1.0;
        for (pause, strike) in Plan::new(self.settings.seed) {
            self.rest(pause.mul_f64(stretch)).await?;
            self.do_strike(strike).await?;
            if looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            let elapsed = started.elapsed();
            let deliveries = self.tally()?.deliveries;
            stretch = stretched(elapsed, deliveries);
            self.kills.consumers = self.crew.ends().killed;
            let kills = self.kills.total();
            if told.elapsed() >= TELL {
                told = looked;
                println!(
                    "{:>4} s: {deliveries} deliveries, {kills} kills",
                    elapsed.as_secs()
                );
            }
            let is_enough =
                deliveries >= self.settings.min_deliveries && kills >= self.settings.min_kills;
            if elapsed >= self.settings.duration && is_enough {
                return Ok(elapsed);
            }
            ensure!(
                elapsed < self.settings.limit,
                "after {elapsed:?} there were {deliveries} deliveries and {kills} kills only"
            );
        }
        bail!("the plan has an end")
    }

    /// Waits, and looks after the consumers meanwhile.
    async fn rest(&mut self, pause: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            self.crew.look_after()?;
            let left = pause.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(POLL)).await;
        }
    }

    async fn do_strike(&mut self, strike: Strike) -> Result<()> {
        match strike {
            Strike::KillConsumer(pick) => self.crew.strike(pick).await?,
            Strike::TerminateSession {
                pick,
                in_transaction,
            } => {
                let client = self.admin.client().await?;
                // It may go away at any moment, and then nobody is terminated.
                if let Ok(true) = terminate(client, pick, in_transaction).await {
                    self.kills.sessions += 1;
                }
            }
            Strike::CutCommit(cut) => {
                let mut shears = self.shears.lock().unwrap_or_else(PoisonError::into_inner);
                shears.armed.push_back(cut);
            }
            Strike::StopServer => {
                let cluster = Arc::clone(&self.cluster);
                let stopped = spawn_blocking(move || {
                    cluster.stop_immediate()?;
                    cluster.start()
                });
                self.kills.servers += 1;
                self.look_after_until(stopped)
                    .await?
                    .context("PostgreSQL does not come back")?;
            }
            Strike::KillBroker => {
                let broker = Arc::clone(&self.broker);
                let killed = spawn_blocking(move || {
                    broker.kill()?;
                    broker.start_again()
                });
                self.kills.brokers += 1;
                self.look_after_until(killed)
                    .await?
                    .context("RabbitMQ does not come back")?;
            }
        }
        Ok(())
    }

    /// Waits for that work, and looks after the consumers meanwhile.
    async fn look_after_until<T>(&mut self, work: JoinHandle<T>) -> Result<T> {
        while !work.is_finished() {
            self.crew.look_after()?;
            sleep(POLL).await;
        }
        Ok(work.await?)
    }

    /// Publishes what is begun to its end and starts the consumers anew.
    async fn calm_down(
        &mut self,
        publishing: JoinHandle<Result<(Publisher, Vec<Workload>)>>,
    ) -> Result<Vec<Workload>> {
        println!("calm: everything is published to its end and comes to rest");
        self.shears
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .armed
            .clear();
        self.signals.is_ending.store(true, Ordering::Release);
        let (publisher, workloads) = self.look_after_until(publishing).await??;
        self.publisher = Some(publisher);
        self.crew.stop().await?;
        self.crew.calm();
        self.crew.start(self.settings.consumers)?;
        Ok(workloads)
    }

    /// Everything after the chaos.
    async fn conclude(mut self, mut workloads: Vec<Workload>) -> Result<Report> {
        let messages: Vec<Planned> = workloads
            .iter()
            .flat_map(|workload| workload.messages().iter().cloned())
            .collect();
        let fates: HashMap<Key, Fate> = messages
            .iter()
            .map(|message| (Key::of(message), message.fate))
            .collect();
        let mut unlucky = self.settle_without_operator(&fates).await?;
        // A copy of a poison message that is still on its way would bring it back under the hands of
        // the operator.
        self.empty_queues().await?;
        self.crew.start(self.settings.consumers)?;
        unlucky += self.settle_without_operator(&fates).await?;

        let before = self.evidence(&messages).await?;
        let mut violations = judge_poison(&before);
        let poison = u64::try_from(fates.values().filter(|fate| fate.is_poison()).count())?;
        println!("the operator comes");
        self.operate(&fates).await?;

        println!("copies of what was settled long ago");
        let publisher = self.publisher.as_mut().context("no publisher")?;
        publish_copies(publisher, &mut workloads, LATE_COPIES).await?;
        let queued = self.empty_queues().await?;

        let mut evidence = self.evidence(&messages).await?;
        evidence.queued = queued;
        violations.extend(judge(&evidence));
        self.kills.consumers = self.crew.ends().killed;
        self.problems
            .extend(self.crew.ends().unexpected.iter().cloned());
        let progress = Progress::read(self.admin.client().await?).await?;
        let contexts: HashSet<_> = messages
            .iter()
            .map(|message| (message.traffic, &message.context))
            .collect();
        let shears = self.shears.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Report {
            seed: self.settings.seed,
            chaos: Duration::ZERO,
            elapsed: Duration::ZERO,
            processes: u64::from(self.crew.started().unsigned_abs()),
            contexts: u64::try_from(contexts.len())?,
            messages: u64::try_from(messages.len())?,
            published: self.signals.published.load(Ordering::Acquire),
            tally: self.tally()?,
            kills: self.kills,
            cuts: shears.made,
            aborted: self.crew.ends().aborted,
            effects: u64::try_from(evidence.effects.iter().filter(|it| !it.is_skip).count())?,
            poison,
            unlucky,
            skipped: progress.skipped,
            dead_letters: progress.dead,
            violations,
            problems: self.problems.clone(),
        })
    }

    /// Waits until each message is applied, a dead letter, or waits for one. Those that became dead
    /// letters because the broker counts a kill as a delivery are retried: how many those were.
    async fn settle_without_operator(&mut self, fates: &HashMap<Key, Fate>) -> Result<u64> {
        let total = u64::try_from(fates.len())?;
        let mut unlucky = 0;
        for _ in 0..RETRY_ROUNDS {
            let is_quiet = self
                .settle(|it| it.applied + it.dead + it.waiting == total)
                .await?;
            let mut retried = 0;
            if is_quiet {
                let client = self.admin.client().await?;
                for (id, key) in ledger::dead_letters(client).await? {
                    if fates.get(&key) == Some(&Fate::Applied) {
                        retried += u64::from(ledger::retry(client, id).await?);
                    }
                }
            }
            if retried == 0 {
                return Ok(unlucky);
            }
            unlucky += retried;
        }
        self.problems
            .push("there were new dead letters again and again".to_owned());
        Ok(unlucky)
    }

    /// The operator's work, and what follows from it.
    async fn operate(&mut self, fates: &HashMap<Key, Fate>) -> Result<()> {
        let client = self.admin.client().await?;
        ledger::mend(client).await?;
        for (id, key) in ledger::dead_letters(client).await? {
            let is_done = match fates.get(&key) {
                Some(Fate::Mended) => ledger::retry(client, id).await?,
                Some(Fate::Skipped) => ledger::skip(client, id).await?,
                _ => true,
            };
            if !is_done {
                let problem = format!("the operator's call on {key} was refused");
                self.problems.push(problem);
            }
        }
        let expected = fates.values().filter(|fate| fate.is_applied()).count();
        let expected = u64::try_from(expected)?;
        self.settle(|progress| progress.applied == expected).await?;
        Ok(())
    }

    /// Waits until it is as it should be. Whether it is: `false` when nothing changes any more, and
    /// the judgement then says which message is to blame.
    async fn settle(&mut self, is_settled: impl Fn(&Progress) -> bool) -> Result<bool> {
        let started = Instant::now();
        let (mut last, mut changed) = (None, started);
        loop {
            self.crew.look_after()?;
            let progress = Progress::read(self.admin.client().await?).await?;
            if is_settled(&progress) {
                return Ok(true);
            }
            let state = Some((progress, self.tally()?));
            if state != last {
                (last, changed) = (state, Instant::now());
            }
            // While there is something to deliver, broker and consumers are slow and not stuck.
            let is_stuck = changed.elapsed() > STUCK_AFTER && self.full_queues().await?.is_empty();
            if is_stuck || started.elapsed() > SETTLE_LIMIT {
                let details = self.describe().await?;
                self.problems.push(format!(
                    "it does not come to rest: {progress:?}\n  {details}"
                ));
                return Ok(false);
            }
            sleep(SETTLE_POLL).await;
        }
    }

    /// Waits until the consumers have emptied the queues and stops them: the queues that are not
    /// empty all the same.
    async fn empty_queues(&mut self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for _ in 0..EMPTYING_ROUNDS {
            let started = Instant::now();
            while !self.full_queues().await?.is_empty() && started.elapsed() < SETTLE_LIMIT {
                self.crew.look_after()?;
                sleep(SETTLE_POLL).await;
            }
            // What they have in hand goes back.
            self.crew.stop().await?;
            left = self.full_queues().await?;
            if left.is_empty() {
                return Ok(left);
            }
            self.crew.start(self.settings.consumers)?;
        }
        self.crew.stop().await?;
        Ok(left)
    }

    /// The queues that have something to deliver, those of what nobody can take included.
    async fn full_queues(&mut self) -> Result<Vec<String>> {
        let publisher = self.publisher.as_mut().context("no publisher")?;
        let mut full = Vec::new();
        for traffic in Traffic::ALL {
            for queue in [traffic.name().to_owned(), dead_queue(traffic.name())] {
                if !publisher.is_empty(&queue).await? {
                    full.push(queue);
                }
            }
        }
        Ok(full)
    }

    /// What queues and sessions are doing, for whoever has to find out why nothing moves.
    async fn describe(&mut self) -> Result<String> {
        let mut told = Vec::new();
        let publisher = self.publisher.as_mut().context("no publisher")?;
        for traffic in Traffic::ALL {
            let level = publisher.look(traffic.name()).await?;
            told.push(format!("queue {}: {level:?}", traffic.name()));
        }
        let sql = "SELECT concat_ws(' ', pid, state, wait_event, now() - state_change, query)
                   FROM pg_stat_activity WHERE usename = $1 ORDER BY pid";
        let sessions = self
            .admin
            .client()
            .await?
            .query(sql, &[&ledger::ROLE])
            .await?;
        for session in sessions {
            told.push(format!("session {}", session.try_get::<_, &str>(0)?));
        }
        Ok(told.join("\n  "))
    }

    /// What the database holds, and what was published.
    async fn evidence(&mut self, messages: &[Planned]) -> Result<Evidence> {
        let mut evidence = ledger::read(self.admin.client().await?).await?;
        evidence.messages = messages.to_vec();
        Ok(evidence)
    }
}

/// By how much pauses are to be longer than planned, after so many deliveries in that time.
fn stretched(elapsed: Duration, deliveries: u64) -> f64 {
    let expected = PACE * elapsed.as_secs_f64();
    (expected / deliveries.max(1) as f64).clamp(1.0, LONGEST_STRETCH)
}

/// Ends one of the consumers' sessions, as an administrator does; whether there was one.
async fn terminate(
    client: &Client,
    pick: usize,
    in_transaction: bool,
) -> Result<bool, tokio_postgres::Error> {
    let sql = "SELECT pid FROM pg_stat_activity
               WHERE usename = $1 AND (NOT $2 OR xact_start IS NOT NULL) ORDER BY pid";
    let mut sessions = client.query(sql, &[&ledger::ROLE, &in_transaction]).await?;
    if sessions.is_empty() {
        sessions = client.query(sql, &[&ledger::ROLE, &false]).await?;
    }
    let Some(session) = pick.checked_rem(sessions.len()).map(|it| &sessions[it]) else {
        return Ok(false);
    };
    let pid: i32 = session.try_get(0)?;
    let row = client
        .query_one("SELECT pg_terminate_backend($1)", &[&pid])
        .await?;
    row.try_get(0)
}

/// The consumers' program, which stands beside this one.
fn program(is_unclaimed: bool) -> Result<PathBuf> {
    let name = if is_unclaimed {
        "chaos-consumer-unclaimed"
    } else {
        "chaos-consumer"
    };
    let program = env::current_exe()?.with_file_name(name);
    ensure!(program.is_file(), "{} is not built", program.display());
    Ok(program)
}

/// The superuser's session, straight to the server, opened anew when it is lost.
struct Admin {
    dsn: String,
    client: Option<Client>,
}

impl Admin {
    fn new(dsn: String) -> Self {
        Self { dsn, client: None }
    }

    async fn client(&mut self) -> Result<&mut Client> {
        let deadline = Instant::now() + SERVER_PATIENCE;
        while self.client.as_ref().is_none_or(Client::is_closed) {
            match tokio_postgres::connect(&self.dsn, NoTls).await {
                Ok((client, connection)) => {
                    // Its error is also that of every call on the client.
                    tokio::spawn(connection);
                    self.client = Some(client);
                }
                Err(error) if Instant::now() > deadline => {
                    return Err(error).context("PostgreSQL does not come back");
                }
                Err(_) => sleep(POLL).await,
            }
        }
        self.client.as_mut().context("no session")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_machine_is_struck_more_rarely() {
        let after = |deliveries| stretched(Duration::from_secs(10), deliveries);
        assert_eq!(after(10_000), 1.0);
        assert_eq!(after(3_500), 1.0);
        assert_eq!(after(1_750), 2.0);
        assert_eq!(after(0), LONGEST_STRETCH);
    }

    #[test]
    fn an_armed_cut_is_made_once_and_counted() {
        let mut shears = Shears::default();
        assert_eq!(shears.cut(), None);
        shears.armed.extend([Cut::After, Cut::Before]);
        assert_eq!(shears.cut(), Some(Cut::After));
        assert_eq!(shears.cut(), Some(Cut::Before));
        assert_eq!(shears.cut(), None);
        assert_eq!((shears.made.before, shears.made.after), (1, 1));
    }
}
