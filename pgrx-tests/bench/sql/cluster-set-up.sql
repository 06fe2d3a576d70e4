-- Two servers, and a queue for each way.
SELECT queue_cluster.add_server('s0', 'host={home} dbname=postgres');

SELECT queue_cluster.add_server('s1', 'host={other} dbname=postgres');

SELECT queue_cluster.rebalance();

SELECT queue_cluster.create('plain', retention => '0');

SELECT queue_cluster.create('cluster', retention => '0')
