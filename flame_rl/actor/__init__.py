"""Everything that runs beside a simulator. This folder, wire/ and nets/ are shipped to the
executors of a cluster, and nothing of the learner; none of them imports torch."""
