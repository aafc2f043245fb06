-- The table that the example DAG `flights` writes into. It has no unique key on purpose: a row that is delivered twice
-- stands there twice.
CREATE TABLE flights (
    year SMALLINT NOT NULL,
    month TINYINT NOT NULL,
    day TINYINT NOT NULL,
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
    hour TINYINT NOT NULL,
    minute TINYINT NOT NULL,
    time_hour DATETIME NOT NULL,
    carrier_count INT NOT NULL,
    random DOUBLE NOT NULL
) ENGINE = InnoDB
