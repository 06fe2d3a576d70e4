-- What the script has made is open to all roles until this.
SELECT queue_cluster.make_grants();
