-- The table of the example DAG t_test. The database fills `id` and `insert_time`; no unique key is needed for exactly-once.
CREATE TABLE t_test (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    value INT NOT NULL,
    insert_time TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
);
