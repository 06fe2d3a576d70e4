-- What the transition has dropped, and no part of the script makes again.
SELECT queue_cluster.make_view('queues');
SELECT queue_cluster.make_grants();
