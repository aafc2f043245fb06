-- The table of PostgreSQL that the example DAG `flights_everywhere` writes into: no unique key, as in flights.sql.
CREATE TABLE flights (
    year SMALLINT NOT NULL,
    month SMALLINT NOT NULL,
    day SMALLINT NOT NULL,
    dep_time SMALLINT,
    sched_dep_time SMALLINT NOT NULL,
    dep_delay SMALLINT,
    arr_time SMALLINT,
    sched_arr_time SMALLINT NOT NULL,
    arr_delay SMALLINT,
    carrier CHAR(2) NOT NULL,
    flight SMALLINT NOT NULL,
    tailnum VARCHAR(6),
    origin CHAR(3) NOT NULL,
    dest CHAR(3) NOT NULL,
    air_time SMALLINT,
    distance SMALLINT NOT NULL,
    hour SMALLINT NOT NULL,
    minute SMALLINT NOT NULL,
    time_hour TIMESTAMPTZ NOT NULL,
    carrier_count INT NOT NULL,
    random DOUBLE PRECISION NOT NULL
)
