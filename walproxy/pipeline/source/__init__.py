"""WAL as a data source of Spark, called `pgwal`: `spark.read.format("pgwal")`, and `spark.readStream` likewise."""
