-- The tables of the example DAG files_to_mysql. No unique key is needed: each row arrives exactly once.
CREATE TABLE orders (
    id BIGINT NOT NULL,
    customer VARCHAR(100) NOT NULL,
    ordered_at DATETIME(6) NOT NULL,
    amount DECIMAL(12, 2) NOT NULL,
    file VARCHAR(255) NOT NULL
) DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE rejected_orders (
    line TEXT NOT NULL,
    file VARCHAR(255) NOT NULL
) DEFAULT CHARACTER SET utf8mb4;
