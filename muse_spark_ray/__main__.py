"""`python -m muse_spark_ray` is `muse-spark`."""

from muse_spark_ray.cli.main import main

if __name__ == "__main__":
    main()
