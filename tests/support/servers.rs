//! Databases on other servers than the program's own: restored ones, and those of a standby (G13).

use throwaway_cluster::Cluster;

use crate::Database;

impl Database {
    /// A fresh database on that server, without the extension and without the ledger.
    pub fn bare_on(cluster: &Cluster) -> Self {
        Self::copy(cluster, "template1")
    }

    /// The database of that name on that server, which is there already.
    pub fn named(cluster: &Cluster, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            dsn: cluster.dsn_of(name),
        }
    }

    /// The same database on another server, a standby of this one's.
    pub fn moved_to(&self, cluster: &Cluster) -> Self {
        Self::named(cluster, &self.name)
    }
}
