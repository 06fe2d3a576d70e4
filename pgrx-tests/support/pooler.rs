//! PgBouncer in transaction mode before a cluster, in its most difficult configuration: each transaction gets the
//! connection that has been idle for longest, and the session's state is reset after each one.

use std::path::Path;
use std::process::Stdio;

use crate::cluster::Cluster;
use crate::stop::KilledAtEnd;
use crate::wait;
use postgres::{Config, NoTls};

/// A throw-away PgBouncer, with its socket in the cluster's folder. Must be dropped before the cluster.
pub struct Pooler {
    _process: KilledAtEnd,
}

impl Pooler {
    pub const PORT: u16 = 6432;

    /// Starts PgBouncer and waits until it takes connections. Panics if it is not installed.
    pub fn start(cluster: &Cluster) -> Self {
        // Debian installs it outside users' PATH.
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"]
            .into_iter()
            .find(|program| Path::new(program).exists());
        let program = program.unwrap_or_else(|| {
            panic!(
                "there is no PgBouncer: run `make examples` or `make browser`, or as root: apt-get install pgbouncer"
            )
        });
        let dir = cluster.dir().display();
        let configuration = format!(
            "[databases]\n\
             * = host={dir} port=5432 user=postgres\n\
             [pgbouncer]\n\
             listen_port = {}\n\
             unix_socket_dir = {dir}\n\
             logfile = {dir}/pgbouncer.log\n\
             auth_type = any\n\
             pool_mode = transaction\n\
             default_pool_size = 5\n\
             min_pool_size = 2\n\
             server_round_robin = 1\n\
             server_reset_query_always = 1\n\
             server_login_retry = 1\n",
            Self::PORT
        );
        let file = cluster.dir().join("pgbouncer.ini");
        std::fs::write(&file, configuration).expect("a writable cluster folder");
        let mut command = cluster.command(program);
        command.arg("--quiet").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let pooler = Self { _process: KilledAtEnd(command.spawn().expect("PgBouncer")) };
        let mut config = Config::new();
        config.host_path(cluster.dir()).port(Self::PORT).user("postgres").dbname("postgres");
        wait::until("PgBouncer takes connections", || config.connect(NoTls).ok());
        pooler
    }
}
