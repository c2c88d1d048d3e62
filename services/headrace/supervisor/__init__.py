"""Runs the suite's services as processes of one machine: started, watched, restarted, stopped in
order.
"""
