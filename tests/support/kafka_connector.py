"""Spark's own Kafka source for tests: jars of Maven Central, as `./dev kafka` fetches them.

The newest whose jars can all be had, which is not the version of Spark itself: its token provider is of the
release before, and is used for nothing but to be there.
"""

from pathlib import Path

from tests.support import kafka_broker
from tests.support.maven import Jars

CONNECTOR = Jars(
    name="spark-kafka-4.2.0",
    variable="BRIM_SPARK_KAFKA",
    artifacts=(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ),
    hashes=Path(__file__).with_name("kafka_connector.sha256"),
    alone=True,
)


def why_not() -> str:
    """Why the source cannot be tried here; "" if it can."""
    if CONNECTOR.directory.is_dir():
        return kafka_broker.why_not()
    return "SPARK'S KAFKA SOURCE IS NOT TESTED: fetch it with ./dev kafka"


def conf() -> str:
    """The setting that gives Spark the jars."""
    return f"spark.jars={','.join(sorted(map(str, CONNECTOR.directory.glob('*.jar'))))}"
