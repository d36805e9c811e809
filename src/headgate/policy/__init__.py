"""Rules as data: what an operator writes, compiled into a policy that turns a request into its plan."""
